"""The services' memory while events come in: what they hold does not grow with what they have seen."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

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
EVENTS, PORTION = 10_000, 1000


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
    """The same papers told anew with other references, so that the ledger and the index hold no more than before."""
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


def own_memory(pid: int) -> float:
    """Resident MiB without pages of files: the store's are mapped, and the kernel takes them back when it needs to."""
    held = psutil.Process(pid).memory_info()
    return (held.rss - held.shared) / 2**20


@pytest.mark.timeout(1500)
def test_memory_grows_by_less_than_a_hundredth(stack: Stack, record_property: Callable[[str, object], None]) -> None:
    held = asyncio.run(memory(stack))
    for service, (before, after) in held.items():
        record_property(f"{service} MiB", f"{before:.1f} -> {after:.1f}")
    assert all(after <= 1.01 * before for before, after in held.values()), held


async def memory(stack: Stack) -> dict[str, tuple[float, float]]:
    """Each service's own MiB after the warm-up, and after 10,000 events more."""
    async with (
        open_channel(stack.addresses["profiler"]) as profiler,
        open_channel(stack.addresses["ingestion"]) as ingestion,
    ):
        encoder = (await ProfileQueryServiceStub(profiler).Info(profile_query_pb2.InfoRequest())).encoder
        stub = IngestionServiceStub(ingestion)

        async def publish(first: int, count: int) -> dict[str, float]:
            for start in range(first, first + count, PORTION):  # no call waits for longer than a connection lives
                await all_searchable(stub, profiler, await publish_all(stub, revisions(encoder, start, PORTION)))
            return {name: own_memory(stack.processes[name].pid) for name in SERVICES}

        before = await publish(0, EVENTS)
        after = await publish(EVENTS, EVENTS)
    return {service: (before[service], after[service]) for service in SERVICES}
