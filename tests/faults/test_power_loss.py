"""Acknowledged writes survive a power cut, simulated by kill -9 and by discarding everything that was not synced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from citewell.index.v1 import index_pb2 as pb
from citewell.ingestion.tokens import decode_token
from citewell.ingestion.v1 import ingestion_pb2, ingestion_pb2_grpc
from citewell.runtime.channels import open_channel
from citewell.runtime.errors import CitewellError
from citewell.types.v1 import publication_pb2
from tests.integration.test_index_service import Child, call, connected, create_view, numbers, paper, serving, stored
from tests.servers.power_cut import PowerCut
from tests.servers.processes import end, free_ports

pytestmark = pytest.mark.fault

WRITERS, BATCHES, BATCH, PAPERS = 4, 8, 20, 300


def profile(number: int, version: int) -> list[float]:
    """A vector that is unique to this version of this paper."""
    return numbers(number * 10_000 + version)


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerCut]:
    cut = PowerCut(tmp_path / "index")
    yield cut
    cut.close()


@pytest.mark.parametrize("flush_seconds", ["30", "0.01"], ids=["from-the-write-ahead-log", "with-flushes-between"])
async def test_the_index_keeps_what_it_acknowledged(power: PowerCut, tmp_path: Path, flush_seconds: str) -> None:
    """Several writers update the same papers repeatedly. The power cut happens during these writes."""
    acknowledged: dict[int, int] = {}
    enough = asyncio.Event()

    async def write(stub: Any, writer: int) -> None:
        for round_ in range(1, 1000):
            chosen = [(writer + WRITERS * (round_ * BATCH + place)) % PAPERS for place in range(BATCH)]
            papers = [paper(number, version=round_, profile=stored(profile(number, round_))) for number in chosen]
            await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=papers))
            acknowledged.update(dict.fromkeys(chosen, round_))
            if round_ >= BATCHES:
                enough.set()

    environment = power.environment | {"CITEWELL_INDEX__FLUSH_SECONDS": flush_seconds}
    with Child(tmp_path / "index", tmp_path / "log", **environment) as child:
        async with connected(child.port) as stub:
            await create_view(stub)
            writers = [asyncio.create_task(write(stub, writer)) for writer in range(WRITERS)]
            await asyncio.wait_for(enough.wait(), 120)
            child.process.send_signal(signal.SIGKILL)
            for ended in await asyncio.gather(*writers, return_exceptions=True):
                assert isinstance(ended, CitewellError)
            assert await child.ended() == -signal.SIGKILL
    power.leave(tmp_path / "left")
    async with serving(tmp_path / "left") as process, connected(process.port) as stub:
        ids = [f"p{number:04}" for number in sorted(acknowledged)]
        kept = await call(stub.ReadPoints, pb.ReadPointsRequest(paper_ids=ids))
        versions = {point.paper.id: point.version for point in kept.papers}
        lost = {number for number, version in acknowledged.items() if versions.get(f"p{number:04}", 0) < version}
        assert not lost, f"{len(lost)} of {len(acknowledged)} papers are older than what was acknowledged"
        for point in kept.papers:
            number = int(point.paper.id[1:])
            found = await call(stub.Search, pb.SearchRequest(vector=profile(number, point.version), limit=1))
            assert found.papers[0].paper.id == point.paper.id


async def test_the_local_log_keeps_what_it_acknowledged(power: PowerCut, tmp_path: Path) -> None:
    """Several callers publish events at the same time. The power cut happens during these calls."""
    tokens: dict[str, str] = {}
    enough = asyncio.Event()

    async def publish(stub: Any, writer: int) -> None:
        for number in range(10_000):
            paper_id = f"{writer}-{number}"
            body = publication_pb2.Publication(paper_id=paper_id, revision=1, title=f"Lantern {paper_id}")
            request = ingestion_pb2.PublishRequest(publication=body)
            tokens[paper_id] = (await call(stub.Publish, request)).token
            if len(tokens) >= 200:
                enough.set()

    log, [port] = tmp_path / "log.txt", free_ports(1)
    with ingestion(tmp_path / "index", port, log, **power.environment) as process:
        async with open_channel(f"localhost:{port}") as channel:
            stub = ingestion_pb2_grpc.IngestionServiceStub(channel)
            writers = [asyncio.create_task(publish(stub, writer)) for writer in range(WRITERS)]
            await asyncio.wait_for(enough.wait(), 120)
            process.kill()
            for ended in await asyncio.gather(*writers, return_exceptions=True):
                assert isinstance(ended, CitewellError)
    power.leave(tmp_path / "left")
    with ingestion(tmp_path / "left", port, log):
        async with open_channel(f"localhost:{port}") as channel:
            stub = ingestion_pb2_grpc.IngestionServiceStub(channel)
            info = await call(stub.Info, ingestion_pb2.InfoRequest())
            held = {part.partition: part.end_offset for part in info.partitions}
            for paper_id, token in tokens.items():
                position, _ = decode_token(token)
                assert position.log_id == info.log_id
                assert position.offset < held[position.partition], f"{paper_id} was acknowledged and is gone"


@contextmanager
def ingestion(data: Path, port: int, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m citewell.ingestion` on a local log, without a worker."""
    settings = {"DATA": str(data), "PORT": str(port), "CONSUME": "false"}
    told = {f"CITEWELL_INGESTION__{name}": value for name, value in settings.items()}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "citewell.ingestion"], env=os.environ | told | environment, stderr=file
        )
    try:
        yield process
    finally:
        process.terminate()
        end(process, log)
