"""Several index processes over one store: searches spread, any of them writes, copies follow the change feed.

The store is the wire of `qdrant_wire`: each process has connections of its own, as to a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citewell.index.v1 import index_pb2 as pb
from citewell.index.v1 import index_pb2_grpc
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.types.v1 import paper_pb2, terms_pb2
from tests.servers.processes import end, free_ports, tail
from tests.servers.qdrant_wire import QdrantWire

DIMENSION = 16


@pytest.fixture
def wire() -> Iterator[QdrantWire]:
    wire = QdrantWire().start()
    yield wire
    wire.close()


class Pod:
    """An index process over the server."""

    def __init__(self, wire: QdrantWire, log: Path, accelerator: str) -> None:
        (self.port,) = free_ports(1)
        self._log = log
        told = {
            "CITEWELL_INDEX__PORT": str(self.port),
            "CITEWELL_INDEX__STORE": "qdrant",
            "CITEWELL_INDEX__QDRANT__URL": wire.url,
            "CITEWELL_INDEX__QDRANT__GRPC_PORT": str(wire.grpc_port),
            "CITEWELL_INDEX__FOLDER": str(log.parent / f"unused {self.port}"),
            "CITEWELL_INDEX__ACCELERATOR": accelerator,
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "citewell.index"], env=os.environ | told, stdout=output, stderr=output
            )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            end(self.process, self._log)

    def said(self) -> str:
        return tail(self._log)


@pytest.fixture
def pods(wire: QdrantWire, tmp_path: Path) -> Iterator[list[Pod]]:
    """One pod with a copy in memory, one without."""
    started = [Pod(wire, tmp_path / f"{accelerator}.log", accelerator) for accelerator in ("flat", "none")]
    try:
        yield started
    finally:
        for pod in started:
            pod.stop()


@contextlib.asynccontextmanager
async def connected(*pods: Pod) -> AsyncIterator[Any]:
    """A channel to these pods, as to a service whose name has several addresses."""
    channel = open_channel("ipv4:" + ",".join(f"127.0.0.1:{pod.port}" for pod in pods))
    try:
        yield index_pb2_grpc.IndexServiceStub(channel)
    finally:
        await channel.close()


async def call(method: Any, request: Any) -> Any:
    with deadlines.within(90):  # a process may take long to start on a busy machine
        return await invoke(method, request, "index", wait_for_ready=True)


def vector(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype("<f4")


def paper(number: int, version: int = 1, seed: int | None = None) -> pb.PaperPoint:
    return pb.PaperPoint(
        paper=paper_pb2.Paper(id=f"p{number:04}"),
        version=version,
        profile=vector(number if seed is None else seed).tobytes(),
        terms=terms_pb2.Terms(ids=[1 + number % 7, 100 + number % 3], values=[1.0, 2.0]),
        length=3.0,
    )


async def write(stub: Any, *papers: pb.PaperPoint) -> None:
    await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=papers))


async def nearest(stub: Any, seed: int) -> str:
    """The id of the paper with the nearest profile."""
    found = await call(stub.Search, pb.SearchRequest(vector=vector(seed).tolist(), limit=1))
    return str(found.papers[0].paper.id)


async def search(stub: Any, seed: int) -> pb.SearchResponse:
    lexical = terms_pb2.LexicalQuery(
        terms=terms_pb2.Terms(ids=[3, 101], values=[0.5, 0.5]), weight=3.0, k1=1.2, b=0.4, mean_length=3.0
    )
    request = pb.SearchRequest(vector=vector(seed).tolist(), lexical=lexical, field=pb.SEARCH_FIELD_HYBRID, limit=20)
    found: pb.SearchResponse = await call(stub.Search, request)
    return found


async def create_view(stub: Any) -> bool:
    request = pb.CreateViewRequest(index_view="main", epoch="e1", model_hash="m1", dimension=DIMENSION)
    return bool((await call(stub.CreateView, request)).created)


def ranking(found: pb.SearchResponse) -> list[tuple[str, float]]:
    return [(hit.paper.id, round(hit.score, 5)) for hit in found.papers]


async def copied(stub: Any) -> None:
    """Waits until the pod answers from memory."""
    async with asyncio.timeout(90):
        while not (await search(stub, 0)).engine.startswith("faiss"):
            pass


async def test_every_pod_sees_what_any_pod_wrote(pods: list[Pod]) -> None:
    async with connected(pods[0]) as one, connected(pods[1]) as other, connected(*pods) as any_pod:
        assert sorted(await asyncio.gather(create_view(one), create_view(other))) == [False, True]
        await call(one.ServeView, pb.ServeViewRequest(index_view="main"))
        await asyncio.gather(
            *(write(one if number % 2 else other, paper(number), paper(100 + number)) for number in range(40))
        )
        await copied(one)
        for number, (writer, reader) in enumerate([(one, other), (other, one)] * 3):
            # No pause between write and search: the copy asks the feed before it answers.
            await write(writer, paper(number, version=2, seed=500 + number))
            assert await nearest(reader, 500 + number) == f"p{number:04}"
        for seed in range(10):
            assert ranking(await search(one, seed)) == ranking(await search(other, seed))
        engines = Counter([(await search(any_pod, seed)).engine for seed in range(20)])
        assert set(engines) == {"faiss-flat", "qdrant"}
        assert min(engines.values()) >= 5


async def test_a_killed_pod_takes_no_search_and_no_write_with_it(pods: list[Pod], wire: QdrantWire) -> None:
    async with connected(*pods) as any_pod, connected(pods[1]) as left:
        await create_view(left)
        await call(left.ServeView, pb.ServeViewRequest(index_view="main"))
        acknowledged, found, begun = 0, 0, asyncio.Event()

        async def keep_writing() -> None:
            nonlocal acknowledged
            for number in range(60):
                await write(any_pod, paper(number))
                acknowledged = number + 1
                if acknowledged == 20:
                    begun.set()

        async def keep_searching() -> None:
            nonlocal found
            while acknowledged < 60:
                await search(any_pod, found)
                found += 1

        feeding = asyncio.gather(keep_writing(), keep_searching())
        async with asyncio.timeout(90):
            await asyncio.wait({asyncio.create_task(begun.wait()), feeding}, return_when=asyncio.FIRST_COMPLETED)
        pods[0].process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(feeding, 90)
        assert found
        stats = await call(left.Stats, pb.StatsRequest())
        assert stats.papers == 60
        late = Pod(wire, Path(pods[0]._log.parent / "late.log"), "sq8")
        try:
            async with connected(late) as stub:
                await copied(stub)
                assert ranking(await search(stub, 3)) == ranking(await search(left, 3))
        finally:
            late.stop()
