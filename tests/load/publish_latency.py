"""How fast publications are accepted and take effect, with vectors supplied, through the whole chain.

    python -m tests.load.publish_latency --rate 50 --seconds 20

Starts index, profiler and ingestion over a folder of its own. The latency is from the acknowledgement of a Publish to
its event being searchable; publications come when they are due, whether or not earlier ones are searchable yet.
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
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import numpy as np

from citewell import __version__
from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.profiler.v1 import profile_query_pb2
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.runtime.channels import open_channel
from citewell.types.v1 import paper_pb2, publication_pb2
from tests.load.latencies import Latencies

SERVICES = ("index", "profiler", "ingestion")
TABLE = 2048
PATIENCE = 600.0


class Publisher:
    """Makes up publications that cite earlier ones, each with the vectors of its texts."""

    def __init__(self, encoder: paper_pb2.ModelInfo, references: int) -> None:
        self._hash, self._references = encoder.hash, references
        vectors = np.random.default_rng(0).standard_normal((TABLE, encoder.dimension))
        self._vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f4")
        self._draw = random.Random(0)
        self._count = 0

    def publications(self, count: int, references: int | None = None) -> Iterator[messages.PublishRequest]:
        for _ in range(count):
            number, self._count = self._count, self._count + 1
            title = f"Paper {number}"
            told = publication_pb2.Publication(paper_id=f"p{number}", revision=1, title=title)
            told.published.year = 2000 + number % 25
            texts = [title]
            cited = self._draw.sample(range(number), min(number, references or self._references))
            for place, other in enumerate(cited):
                texts.append(f"As TARGETCIT says at place {place} of {number}.")
                told.masked_contexts.add(text=texts[-1], cited_id=f"p{other}")
            for text in texts:
                values = self._vectors[self._draw.randrange(TABLE)].tobytes()
                digest = hashlib.sha256(text.encode()).digest()
                told.vectors.add(text_hash=digest, model_hash=self._hash, values=values)
            yield messages.PublishRequest(publication=told)


async def publish_all(stub: IngestionServiceStub, requests: Iterable[messages.PublishRequest]) -> list[str]:
    """Their tokens, from one stream."""

    async def stream() -> AsyncIterator[messages.PublishStreamRequest]:
        for request in requests:
            yield messages.PublishStreamRequest(publish=request)

    return [answer.accepted.token async for answer in stub.PublishStream(stream())]


async def searchable(stub: IngestionServiceStub, token: str) -> None:
    asked = messages.GetPublicationStatusRequest(token=token, wait=True)
    status = await stub.GetPublicationStatus(asked, timeout=PATIENCE)
    if status.state != messages.PUBLICATION_STATE_SEARCHABLE:
        raise RuntimeError(f"{status.outcome}: {status.message}")


async def offer(
    stub: IngestionServiceStub, requests: list[messages.PublishRequest], rate: float
) -> tuple[Latencies, Latencies]:
    """(due → acknowledged, acknowledged → searchable) at so many publications a second."""
    acknowledged, effective = Latencies(), Latencies()
    started = time.monotonic()

    async def one(request: messages.PublishRequest, due: float) -> None:
        accepted = await stub.Publish(request, timeout=PATIENCE)
        at = time.monotonic()
        acknowledged.record(at - due)
        await searchable(stub, accepted.token)
        effective.record(time.monotonic() - at)

    calls = []
    for number, request in enumerate(requests):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.create_task(one(request, due)))
    await asyncio.gather(*calls)
    return acknowledged, effective


async def measure(stack: Stack, arguments: argparse.Namespace) -> None:
    channels = {service: open_channel(stack.addresses[service]) for service in ("profiler", "ingestion")}
    info = await ProfileQueryServiceStub(channels["profiler"]).Info(profile_query_pb2.InfoRequest())
    stub, publisher = IngestionServiceStub(channels["ingestion"]), Publisher(info.encoder, arguments.references)

    requests = list(publisher.publications(arguments.burst))
    started = time.monotonic()
    tokens = await publish_all(stub, requests)
    accepted = time.monotonic() - started
    await asyncio.gather(*(searchable(stub, token) for token in tokens[-64:]))
    took = time.monotonic() - started
    citations = sum(len(request.publication.masked_contexts) for request in requests)
    print(f"accepted by PublishStream, while applying  {arguments.burst / accepted:10,.0f} publications/s")
    print(f"published, applied and searchable          {arguments.burst / took:10,.0f} publications/s")
    print(f"                                           {citations / took:10,.0f} citations/s")

    requests = list(publisher.publications(int(arguments.rate * arguments.seconds)))
    acknowledged, effective = await offer(stub, requests, arguments.rate)
    print(f"at {arguments.rate:g} publications/s, {arguments.references} references each:")
    print(f"  due to acknowledged         {acknowledged.row()}")
    print(f"  acknowledged to searchable  {effective.row()}")
    for channel in channels.values():
        await channel.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", type=int, default=1000, help="publications sent at once, to measure throughput")
    parser.add_argument("--rate", type=float, default=50.0, help="publications a second, to measure latency")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--references", type=int, default=20)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"citewell {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        try:
            stack.start(SERVICES)
            stack.wait(SERVICES)
            asyncio.run(measure(stack, arguments))
        finally:
            stack.stop(reversed(SERVICES))


if __name__ == "__main__":
    main()
