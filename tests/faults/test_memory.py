"""The memory of the services does not grow with the number of events they have processed."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import psutil
import pytest

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.profiler.v1 import profile_query_pb2
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.runtime.channels import open_channel
from citewell.types.v1 import paper_pb2, publication_pb2
from tests.load.publish_latency import all_searchable, publish_all
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics
from tests.servers.postgres import PostgresServer
from tests.tiny_models import write_tiny_encoder

pytestmark = pytest.mark.fault

SERVICES = ("index", "profiler", "ingestion")
PAPERS, REFERENCES = 250, 4
PORTION, WARM_UP, WINDOW, APART = 1000, 15, 10, 30
"""Events per portion; then, in portions: the warm-up, the readings in one mean, and the distance between the two means.
Memory is read after each portion. The distance is large, because the store grows in rare steps of some MiB, and one
step would look like a trend over a short distance."""
JOURNAL_MIB = 2 * 32
"""Total size of the store's two write-ahead logs. Each is a mapped file of 32 MiB that is replaced when it is full."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    broker, postgres = KafkaBroker(tmp_path / "broker"), PostgresServer()
    stack = Stack(tmp_path / "data", choose_ports(0), cluster=True)
    try:
        log = fresh_topics(broker.start(), partitions=4).model_dump(mode="json", exclude_defaults=True)
        stack.settings = {
            "CITEWELL_INGESTION__LOG__KIND": "kafka",
            **{f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in log.items()},
            "CITEWELL_PROFILER__LEDGER_URL": postgres.start().fresh_database(),
            "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(tmp_path / "encoder")),
            "CITEWELL_PROFILER__ENCODER_CACHE": str(tmp_path / "graphs"),
        }
        stack.start(SERVICES)
        stack.wait(SERVICES)
        yield stack
    finally:
        stack.stop(SERVICES[::-1])
        broker.kill()
        postgres.remove()


def revisions(encoder: paper_pb2.ModelInfo, first: int, count: int) -> Iterator[ingestion_pb2.PublishRequest]:
    """Revisions of the same papers, so that the data in the ledger and the index do not grow."""
    values = np.ones(encoder.dimension, "<f4").tobytes()
    for number in range(first, first + count):
        paper, revision = number % PAPERS, number // PAPERS + 1
        told = publication_pb2.Publication(paper_id=f"p{paper}", revision=revision, title=f"Paper {paper}")
        for each in range(REFERENCES):
            cited = (paper + revision % 7 * REFERENCES + each) % PAPERS
            told.masked_contexts.add(text=f"As TARGETCIT says of {cited}.", cited_id=f"p{cited}")
        for text in (told.title, *(context.text for context in told.masked_contexts)):
            told.vectors.add(text_hash=hashlib.sha256(text.encode()).digest(), model_hash=encoder.hash, values=values)
        yield ingestion_pb2.PublishRequest(publication=told)


def resident(pid: int) -> tuple[float, float]:
    """Resident MiB of a process, including mapped files: first all but the write-ahead logs, then those alone."""
    maps = psutil.Process(pid).memory_maps()
    journals = sum(each.rss for each in maps if "/wal/" in each.path)
    return (sum(each.rss for each in maps) - journals) / 2**20, journals / 2**20


@pytest.mark.timeout(1500)
def test_memory_grows_by_less_than_a_hundredth_per_10_000_events(
    stack: Stack, record_property: Callable[[str, object], None]
) -> None:
    readings = asyncio.run(read_memory(stack))
    for service in SERVICES:
        held = [memory[service][0] for memory in readings]
        # The index uses some MiB more until its next flush. A window is long enough for at least two flushes.
        before, after = mean(held[:WINDOW]), mean(held[APART:])
        record_property(f"{service} MiB", f"{before:.1f} -> {after:.1f}")
        growth = (after / before - 1) * 10_000 / (APART * PORTION)
        assert growth < 0.01, (service, held)
        assert all(memory[service][1] <= JOURNAL_MIB for memory in readings)


async def read_memory(stack: Stack) -> list[dict[str, tuple[float, float]]]:
    """The memory of each service after every portion that follows the warm-up."""
    async with (
        open_channel(stack.addresses["profiler"]) as profiler,
        open_channel(stack.addresses["ingestion"]) as ingestion,
    ):
        encoder = (await ProfileQueryServiceStub(profiler).Info(profile_query_pb2.InfoRequest())).encoder
        stub = IngestionServiceStub(ingestion)
        readings = []
        for portion in range(WARM_UP + APART + WINDOW):  # one call for each portion: connections have a maximum age
            told = await publish_all(stub, revisions(encoder, portion * PORTION, PORTION))
            await all_searchable(stub, profiler, told)
            if portion >= WARM_UP:
                readings.append({name: resident(stack.processes[name].pid) for name in SERVICES})
        return readings
