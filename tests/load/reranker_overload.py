"""The reranker under three times its capacity: accepted requests stay fast, the others are refused at once.

    python -m tests.load.reranker_overload

Prints a table, and exits with 1 if one of these fails: at three times the capacity the p99 of accepted requests stays
below twice that at full load, most of the others are refused, and memory does not grow.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import psutil

from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import CitewellError
from tests.servers.processes import free_ports

SECONDS = 12
DEPTH = 50


@dataclass
class Outcome:
    """The results of one phase's requests."""

    seconds: list[float] = field(default_factory=list)
    refused_seconds: list[float] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.seconds, share))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A reranker's process with the model that ships, and its address."""
    (port,) = free_ports(1)
    settings = {"CITEWELL_RERANKER__PORT": str(port)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "citewell.reranker"], env={**os.environ, **settings}, stderr=log
        )
    try:
        yield f"127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def requests() -> Iterator[messages.RerankRequest]:
    """Requests that always have new papers, so that caches do not help."""
    for number in itertools.count():
        papers = [
            messages.RerankCandidate(
                paper_id=f"{number}-{i}", revision=1, title="a word", abstract="more words " * 30, rank=i
            )
            for i in range(1, DEPTH + 1)
        ]
        yield messages.RerankRequest(
            context="before " * 20 + "TARGETCIT" + " after" * 20, title="a title", candidates=papers
        )


async def one(stub: RerankerServiceStub, request: messages.RerankRequest, outcome: Outcome) -> None:
    started = time.monotonic()
    try:
        answer = await stub.Rerank(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
            outcome.refused_seconds.append(time.monotonic() - started)
        else:
            outcome.other.append(error.code().name)
    else:
        assert answer.scored == DEPTH
        outcome.seconds.append(time.monotonic() - started)


async def closed_loop(stub: RerankerServiceStub, source: Iterator[messages.RerankRequest], in_flight: int) -> Outcome:
    """This many callers, each sending its next request after an answer."""
    outcome, ends = Outcome(), time.monotonic() + SECONDS

    async def caller() -> None:
        while time.monotonic() < ends:
            await one(stub, next(source), outcome)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return outcome


async def open_loop(stub: RerankerServiceStub, source: Iterator[messages.RerankRequest], rate: float) -> Outcome:
    """Requests arrive at a constant rate, independent of earlier answers."""
    outcome, started = Outcome(), time.monotonic()
    calls = []
    for number in range(int(rate * SECONDS)):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        calls.append(asyncio.create_task(one(stub, next(source), outcome)))
    await asyncio.gather(*calls)
    return outcome


async def measure(address: str, process: psutil.Process) -> bool:
    """Prints the table; returns whether all conditions hold."""
    channel = open_channel(address)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await require_serving(channel, "citewell.reranker.v1.RerankerService")
                    break
                except CitewellError:
                    await asyncio.sleep(0.1)
        stub, source = RerankerServiceStub(channel), requests()
        alone = await closed_loop(stub, source, 1)
        normal = await closed_loop(stub, source, 4)
        capacity = len(normal.seconds) / SECONDS
        before = process.memory_info().rss
        overload = await open_loop(stub, source, 3 * capacity)
        grown = process.memory_info().rss - before
    finally:
        await channel.close()
    print(f"{DEPTH} pairs a request; capacity {capacity:.1f} requests/s; {os.cpu_count()} cores")
    for label, outcome in [("1 in flight", alone), ("4 in flight", normal), ("3x capacity", overload)]:
        figures = ", ".join(f"p{share} {1000 * outcome.percentile(share):.0f} ms" for share in (50, 95, 99))
        print(f"{label}: {len(outcome.seconds)} answered ({figures}), {len(outcome.refused_seconds)} refused")
    refusal = 1000 * float(np.median(overload.refused_seconds or [math.nan]))
    print(f"a refusal takes {refusal:.0f} ms (median); memory grew by {grown / 1e6:.0f} MB")
    kept = {
        "nothing is refused below capacity": not normal.refused_seconds,
        "nothing fails otherwise": not [*alone.other, *normal.other, *overload.other],
        "most of an overload is refused": len(overload.refused_seconds) > len(overload.seconds) / 2,
        "what is accepted stays under twice the p99 at full load": overload.percentile(99) < 2 * normal.percentile(99),
        "memory is flat": grown < 64e6,
    }
    for promise, held in kept.items():
        print(f"{'kept' if held else 'BROKEN'}: {promise}")
    return all(kept.values())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch)) as served:
        sys.exit(0 if asyncio.run(measure(*served)) else 1)
