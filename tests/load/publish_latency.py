"""Measures how fast publications are accepted and take effect, with supplied vectors or with encoding.

    python -m tests.load.publish_latency --rate 50 --seconds 20
    python -m tests.load.publish_latency --encode --rate 0 --share 0.7 --burst 300 --seconds 60 --ask-every 4

Starts the services over a folder of its own. The latencies are from the acknowledgement of a Publish to its event being
searchable, and to the answer of a Recommend that asks for it (min_watermark) and does not rerank; publications come
when they are due, whether or not earlier ones are searchable yet.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import psutil

from citewell import __version__
from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.profiler.v1 import ledger_pb2, profile_query_pb2
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.recommender.v1 import recommender_pb2
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from citewell.types.v1 import paper_pb2, publication_pb2
from tests.load.latencies import Latencies

SERVICES = ("index", "profiler", "ingestion")
ASKED = (*SERVICES, "recommender")
TABLE = 2048
CONTEXT_WORDS, ABSTRACT_WORDS = 60, 150
WORDS = ("graph", "learning", "model", "data", "sparse", "method", "kernel", "robust", "bound", "network", "language")
LAST = 64
LOOK_SECONDS = 0.1
PATIENCE = 600.0


class Publisher:
    """Generates publications that cite earlier ones, with vectors or with texts of realistic length."""

    def __init__(self, encoder: paper_pb2.ModelInfo, references: int, *, vectors: bool = True) -> None:
        self._hash, self._references, self._supplied = encoder.hash, references, vectors
        table = np.random.default_rng(0).standard_normal((TABLE, encoder.dimension))
        self._vectors = (table / np.linalg.norm(table, axis=1, keepdims=True)).astype("<f4")
        self._draw = random.Random(0)
        self._count = 0

    def publications(self, count: int, references: int | None = None) -> Iterator[messages.PublishRequest]:
        for _ in range(count):
            number, self._count = self._count, self._count + 1
            title = f"Paper {number}"
            told = publication_pb2.Publication(paper_id=f"p{number}", revision=1, title=title)
            told.published.year = 2000 + number % 25
            cited = self._draw.sample(range(number), min(number, references or self._references))
            for place, other in enumerate(cited):
                context = f"As TARGETCIT says at place {place} of {number}."
                told.masked_contexts.add(text=self._longer(context, CONTEXT_WORDS), cited_id=f"p{other}")
            if self._supplied:
                for text in (title, *(context.text for context in told.masked_contexts)):
                    values = self._vectors[self._draw.randrange(TABLE)].tobytes()
                    digest = hashlib.sha256(text.encode()).digest()
                    told.vectors.add(text_hash=digest, model_hash=self._hash, values=values)
            else:
                told.abstract = self._longer("", ABSTRACT_WORDS)
            yield messages.PublishRequest(publication=told)

    def _longer(self, text: str, words: int) -> str:
        """The text extended to a realistic length."""
        return text if self._supplied else " ".join((text, *self._draw.choices(WORDS, k=words))).strip()


async def publish_all(stub: IngestionServiceStub, requests: Iterable[messages.PublishRequest]) -> list[str]:
    """Publishes them in one stream; returns their tokens."""

    async def stream() -> AsyncIterator[messages.PublishStreamRequest]:
        for request in requests:
            yield messages.PublishStreamRequest(publish=request)

    return [answer.accepted.token async for answer in stub.PublishStream(stream())]


async def searchable(stub: IngestionServiceStub, token: str) -> None:
    asked = messages.GetPublicationStatusRequest(token=token, wait=True)
    status = await stub.GetPublicationStatus(asked, timeout=PATIENCE)
    if status.state != messages.PUBLICATION_STATE_SEARCHABLE:
        raise RuntimeError(f"{status.outcome}: {status.message}")


async def all_searchable(stub: IngestionServiceStub, profiler: grpc.aio.Channel, tokens: Sequence[str]) -> None:
    """Returns when everything up to these last tokens is searchable; costs little while measuring."""
    await asyncio.gather(*(searchable(stub, token) for token in tokens[-LAST:]))  # every partition has some of them
    ledger = LedgerServiceStub(profiler)
    while True:
        views = (await ledger.ListViews(ledger_pb2.ListViewsRequest(), timeout=60)).views
        if not any(view.marks for view in views):
            return
        await asyncio.sleep(LOOK_SECONDS)


class Watch:
    """Processor time of services since its creation."""

    def __init__(self, stack: Stack) -> None:
        self._processes = {service: psutil.Process(process.pid) for service, process in stack.processes.items()}
        self._before = self._spent()

    def _spent(self) -> dict[str, float]:
        times = {service: process.cpu_times() for service, process in self._processes.items()}
        return {service: spent.user + spent.system for service, spent in times.items()}

    def row(self, publications: int) -> str:
        """Milliseconds per publication."""
        spent = {service: seconds - self._before[service] for service, seconds in self._spent().items()}
        return "  ".join(f"{service} {1000 * seconds / publications:.1f}" for service, seconds in spent.items())


class Chain:
    """Publishes each event when it is due, and measures when it takes effect."""

    def __init__(self, ingestion: IngestionServiceStub, recommender: RecommenderServiceStub) -> None:
        self._ingestion, self._recommender = ingestion, recommender
        self.acknowledged, self.effective, self.answered = Latencies(), Latencies(), Latencies()

    async def offer(self, requests: list[messages.PublishRequest], rate: float, ask_every: int) -> None:
        """Of every `ask_every` publications one is awaited by a Recommend, the others by their status."""
        started = time.monotonic()
        calls = []
        for number, request in enumerate(requests):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            calls.append(asyncio.create_task(self._one(request, due, ask=number % ask_every == 0)))
        await asyncio.gather(*calls)

    async def _one(self, request: messages.PublishRequest, due: float, *, ask: bool) -> None:
        accepted = await self._ingestion.Publish(request, timeout=PATIENCE)
        at = time.monotonic()
        self.acknowledged.record(at - due)
        if ask:
            options = recommender_pb2.Options(min_watermark=[accepted.token], rerank=False)
            query = recommender_pb2.Query(title=request.publication.title)
            await self._recommender.Recommend(
                recommender_pb2.RecommendRequest(query=query, options=options), timeout=PATIENCE
            )
            self.answered.record(time.monotonic() - at)
        else:
            await searchable(self._ingestion, accepted.token)
            self.effective.record(time.monotonic() - at)


async def measure(stack: Stack, arguments: argparse.Namespace) -> None:
    channels = {service: open_channel(stack.addresses[service]) for service in ("profiler", "ingestion", "recommender")}
    info = await ProfileQueryServiceStub(channels["profiler"]).Info(profile_query_pb2.InfoRequest())
    stub = IngestionServiceStub(channels["ingestion"])
    publisher = Publisher(info.encoder, arguments.references, vectors=not arguments.encode)

    requests = list(publisher.publications(arguments.burst))
    watch, started = Watch(stack), time.monotonic()
    tokens = await publish_all(stub, requests)
    accepted = time.monotonic() - started
    await all_searchable(stub, channels["profiler"], tokens)
    took = time.monotonic() - started
    citations = sum(len(request.publication.masked_contexts) for request in requests)
    print(f"accepted by PublishStream, while applying  {arguments.burst / accepted:10,.0f} publications/s")
    print(f"published, applied and searchable          {arguments.burst / took:10,.1f} publications/s")
    print(f"                                           {citations / took:10,.0f} citations/s")
    texts = (arguments.burst + citations) / took
    if arguments.encode:
        print(f"                                           {texts:10,.0f} texts/s, encoded and all the rest")
    print(f"  processor time, ms a publication: {watch.row(arguments.burst)}")

    rate = arguments.rate or arguments.share * texts / (arguments.references + 1)
    requests = list(publisher.publications(int(rate * arguments.seconds)))
    watch, chain = Watch(stack), Chain(stub, RecommenderServiceStub(channels["recommender"]))
    await chain.offer(requests, rate, arguments.ask_every)
    offered = rate * (arguments.references + 1)
    share = f", {offered:.0f} texts/s, {offered / texts:.0%} of the burst's" if arguments.encode else ""
    print(f"at {rate:.3g} publications/s, {arguments.references} references each{share}:")
    print(f"  due to acknowledged         {chain.acknowledged.row()}")
    print(f"  acknowledged to searchable  {chain.effective.row()}")
    print(f"  acknowledged to Recommend   {chain.answered.row()}")
    print(f"  processor time, ms a publication: {watch.row(len(requests))}")
    for channel in channels.values():
        await channel.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", type=int, default=1000, help="publications sent at once, to measure throughput")
    parser.add_argument("--rate", type=float, default=50.0, help="publications a second, to measure latency")
    parser.add_argument(
        "--share", type=float, default=0.7, help="with --rate 0: this share of the burst's texts a second"
    )
    parser.add_argument("--encode", action="store_true", help="texts as long as real ones, without vectors")
    parser.add_argument("--ask-every", type=int, default=20, help="one in so many is seen by a Recommend")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--references", type=int, default=20)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"citewell {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        try:
            stack.start(ASKED)
            stack.wait(ASKED)
            asyncio.run(measure(stack, arguments))
        finally:
            stack.stop(reversed(ASKED))


if __name__ == "__main__":
    main()
