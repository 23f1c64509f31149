"""Five processes with synthetic papers, once with embedded stores and once on Kafka and PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from citewell.commands.stack import SERVICES, Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Publication
from citewell.types.messages import date_to_message, publication_to_message
from tests.demo_world import Asked, divided
from tests.e2e.client import Client
from tests.servers.kafka_topics import fresh_topics, log_on
from tests.servers.metrics import scraped
from tests.servers.otlp import Collector
from tests.servers.processes import free_ports, wait_until

PAPERS = 300
SEED = 7

# Short pauses between retries, because the tests wait for recoveries.
_IMPATIENT = {
    "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "1",
    "CITEWELL_RECOMMENDER__BREAKER_REST_SECONDS": "0.5",
    "CITEWELL_PROFILER__INDEX_CHECK_SECONDS": "0.5",
    # Tests ask many questions at once, on machines of any speed.
    "CITEWELL_RECOMMENDER__LONGEST_QUEUE_SECONDS": "60",
    "CITEWELL_RECOMMENDER__EVIDENCE_TIMEOUT_SECONDS": "10",
}


@dataclass(frozen=True, slots=True)
class Running:
    """Five running services, a client, and the synthetic papers that were published to them."""

    stack: Stack
    client: Client
    publications: dict[str, Publication]
    said_of: dict[str, dict[str, tuple[str, ...]]]
    """cited paper → citing paper → contexts."""
    queries: tuple[Asked, ...]
    metrics_ports: dict[str, int]
    """service → port of its Prometheus endpoint."""
    traces: Collector
    """Receives the spans of all services."""

    def answered(self) -> float:
        """How many queries the recommender has answered by HYBRID."""
        told = scraped(self.metrics_ports["recommender"])
        count = told.value("citewell_recommender_answers_total", strategy="HYBRID")
        return 0.0 if math.isnan(count) else count  # there is no such metric before the first answer

    def answered_at_rest(self) -> float:
        """The same, once no more answers come."""
        counts = [-1.0]

        def rests() -> bool:
            counts.append(self.answered())
            return counts[-1] == counts[-2]

        wait_until(rests, "no more queries answered", every=1.0)
        return counts[-1]


@pytest.fixture(scope="session", params=["embedded", "cluster"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The services, when all synthetic papers are searchable."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = dict(_IMPATIENT)
    if request.param == "cluster":
        settings |= _cluster(request)
    with Collector() as traces:
        yield from _run(folder, request.param == "cluster", settings, traces)


def _run(folder: Path, cluster: bool, settings: dict[str, str], traces: Collector) -> Iterator[Running]:
    metrics_ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
    settings |= {f"CITEWELL_{name.upper()}__METRICS_PORT": str(port) for name, port in metrics_ports.items()}
    stack = Stack(folder, choose_ports(0), cluster, settings | traces.settings)
    stack.start()
    client = Client(stack.addresses)
    try:
        stack.wait()
        publications, queries = _world()
        publish(client, publications)
        said_of: dict[str, dict[str, tuple[str, ...]]] = {}
        for citing in publications:
            for cited, texts in citing.contexts().items():
                said_of.setdefault(cited, {})[citing.paper_id] = texts
        known = {each.paper_id: each for each in publications}
        yield Running(stack, client, known, said_of, queries, metrics_ports, traces)
    finally:
        client.close()
        stack.stop()


def _cluster(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings that put the log on Kafka and the ledger on PostgreSQL."""
    broker, database = request.getfixturevalue("kafka_broker"), request.getfixturevalue("postgres_server")
    return {
        **log_on(fresh_topics(broker, partitions=4)),
        "CITEWELL_PROFILER__LEDGER_URL": database.fresh_database(),
    }


def _world() -> tuple[list[Publication], tuple[Asked, ...]]:
    world = list(divided(PAPERS, SEED))
    return [publication for publication, _ in world], tuple(asked for _, some in world for asked in some)


def publish(client: Client, publications: list[Publication]) -> None:
    stream = (
        ingestion_pb2.PublishStreamRequest(
            publish=ingestion_pb2.PublishRequest(publication=publication_to_message(publication))
        )
        for publication in publications
    )
    accepted = list(client.ingestion.PublishStream(stream, timeout=120))
    assert [each.index for each in accepted] == list(range(len(publications)))
    for each in accepted:
        status = client.settled(each.accepted.token, seconds=150)
        assert status.state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, status


def before(date: str) -> messages.Options:
    """Options whose filter excludes papers published on that day or later."""

    options = messages.Options(rerank=False)
    options.filter.published_before.CopyFrom(date_to_message(PartialDate.parse(date)))
    return options


@pytest.fixture
def data(running: Running) -> Path:
    """The data folder for commands."""
    return running.stack.data
