"""Latency, memory and recall of five services over a demo world: python -m tests.load.bench --papers 88000.

Overhead is the caller's waiting time minus the times that profiler and index report: each service logs every call with
its trace id, which the calls of one Recommend share.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from citewell.commands.stack import SERVICES, Stack, choose_ports
from citewell.index.v1 import index_pb2
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from citewell.scholarly.publications import Publication
from tests.demo_world import Asked, divided
from tests.load.closed_loop import closed_loop
from tests.load.told import WordVectors, tell

SEED = 7
DIMENSION = 384
WARM_UP = 30
DEADLINE = 30.0
RECALL_DEPTH = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=88_000)
    parser.add_argument("--calls", type=int, default=400, help="measured at each number in flight")
    parser.add_argument("--encode", action="store_true", help="vectors of the real encoder, which takes its time")
    arguments = parser.parse_args()
    asked: list[Asked] = []

    def publications() -> Iterator[Publication]:
        for publication, some in divided(arguments.papers, SEED):
            asked.extend(some)
            yield publication

    _print_environment(arguments)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        stack.start()
        try:
            stack.wait()
            started = time.monotonic()
            tell(stack.addresses, publications(), None if arguments.encode else WordVectors(DIMENSION))
            seconds = time.monotonic() - started
            print(f"loaded in {seconds:.0f} s ({arguments.papers / seconds:.0f} papers/s)")
            asyncio.run(_measure(stack, asked, arguments.calls))
            _print_memory(stack)
        finally:
            stack.stop()
        _print_overhead(stack, arguments.calls)


async def _measure(stack: Stack, asked: Sequence[Asked], calls: int) -> None:
    requests = [
        messages.RecommendRequest(query=each.query, options=messages.Options(rerank=False)) for each in asked[:1000]
    ]
    async with open_channel(stack.addresses["recommender"]) as channel:
        stub = RecommenderServiceStub(channel)
        for in_flight, measured in ((1, WARM_UP), (8, calls), (1, calls)):
            latencies, _ = await closed_loop(stub, requests, measured, in_flight)
            if measured != WARM_UP:
                print(f"Recommend, {in_flight} in flight: {latencies.row()}")
    async with open_channel(stack.addresses["index"]) as channel:
        await _print_recall(IndexServiceStub(channel), asked)


async def _print_recall(index: IndexServiceStub, asked: Sequence[Asked]) -> None:
    vectors = WordVectors(DIMENSION)
    shares = []
    for each in asked[:100]:
        search = index_pb2.SearchRequest(vector=vectors(each.query.context), limit=RECALL_DEPTH)
        found = await index.Search(search, timeout=DEADLINE)
        search.exact = True
        right = await index.Search(search, timeout=DEADLINE)
        least = right.papers[-1].score
        shares.append(np.mean([paper.score >= least - 1e-6 for paper in found.papers]))
    print(f"recall@{RECALL_DEPTH} of {found.engine} against exact {right.engine}: {np.mean(shares):.4f}")


def _print_memory(stack: Stack) -> None:
    for service in sorted(SERVICES, key=SERVICES.__getitem__):
        memory = psutil.Process(stack.processes[service].pid).memory_info()
        print(f"memory {service:<12} {memory.rss / 1e6:8,.0f} MB")


def _print_overhead(stack: Stack, calls: int) -> None:
    """Of the last calls, which were one in flight: the recommender's time beyond that of the services it asked."""
    spent: dict[str, float] = defaultdict(float)
    for service in ("profiler", "index"):
        for call in _calls(stack, service):
            spent[call["trace_id"]] += call["ms"]
    whole = [call for call in _calls(stack, "recommender") if call["method"].endswith("/Recommend")][-calls:]
    beyond = sorted(call["ms"] - spent[call["trace_id"]] for call in whole)
    stages = sorted(spent[call["trace_id"]] for call in whole)
    middle = len(beyond) // 2
    print(f"one in flight, p50: stages' own time {stages[middle]:.1f} ms, gateway and hops {beyond[middle]:.1f} ms")


def _calls(stack: Stack, service: str) -> Iterator[dict[str, Any]]:
    for line in stack.log(service).read_text().splitlines():
        if '"event": "call"' in line and '"trace_id"' in line:
            yield json.loads(line)


def _print_environment(arguments: argparse.Namespace) -> None:
    packages = ("grpcio", "qdrant-edge-py", "faiss-cpu", "openvino", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    processors = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = processors[0].partition(":")[2].strip() if processors else platform.machine()
    print(f"{os.cpu_count()} × {model}, load {os.getloadavg()[0]:.1f}; Python {sys.version.split()[0]}, {versions}")
    vectors = "the encoder's vectors" if arguments.encode else "invented vectors (queries are encoded for real)"
    print(f"{arguments.papers:,} papers of the demo world, seed {SEED}, {vectors}; no reranker, k = 300, top 10")


if __name__ == "__main__":
    main()
