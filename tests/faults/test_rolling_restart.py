"""Every service is restarted in turn while clients ask and publish: no call fails (P6). `make rolling`.

Recommender, reranker, profiler and ingestion run twice, on Kafka and PostgreSQL; every client balances over both. The
embedded index runs once: calls wait while it restarts.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from citewell.client import AsyncCitewell, Options, Publication, Query
from citewell.commands.stack import Stack, choose_ports
from citewell.runtime.errors import CitewellError
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics
from tests.servers.postgres import PostgresServer
from tests.servers.processes import wait_until

pytestmark = pytest.mark.fault

TWICE = ("recommender", "reranker", "profiler", "ingestion")
ONCE = ("index",)
PAPERS, SEED = 200, 11
DEADLINE = 30.0


@dataclass
class Pair:
    """Two stacks on one log and one ledger; the second has no index."""

    first: Stack
    second: Stack
    queries: list[Query]

    def address(self, service: str) -> str:
        """Both processes of a service, as gRPC balances over them."""
        return both(self.first.ports[service], self.second.ports[service])

    def restarts(self) -> Iterator[tuple[Stack, str]]:
        """Which process restarts when: all of them, twice."""
        for _ in range(2):
            for service in (*TWICE, *ONCE):
                yield self.first, service
                if service in TWICE:
                    yield self.second, service


def both(*ports: int) -> str:
    return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: KafkaBroker, postgres_server: PostgresServer
) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    ports = [choose_ports(0), choose_ports(0)]
    topics = fresh_topics(kafka_broker, partitions=4)
    kafka = topics.model_dump(mode="json", include={"bootstrap_servers", "topic", "dead_letter_topic"})
    balanced = {name: both(ports[0][name], ports[1][name]) for name in TWICE}
    index = f"127.0.0.1:{ports[0]['index']}"
    settings = {
        "CITEWELL_INGESTION__LOG__KIND": "kafka",
        **{f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in kafka.items()},
        "CITEWELL_INGESTION__PROFILER_ADDRESS": balanced["profiler"],
        "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "1",
        "CITEWELL_PROFILER__LEDGER_URL": postgres_server.fresh_database(),
        "CITEWELL_PROFILER__INDEX_ADDRESS": index,
        "CITEWELL_PROFILER__ENCODER_THREADS": "1",
        "CITEWELL_RECOMMENDER__INDEX_ADDRESS": index,
        **{f"CITEWELL_RECOMMENDER__{name.upper()}_ADDRESS": balanced[name] for name in TWICE if name != "recommender"},
    }
    first, second = (Stack(folder / str(number), ports[number], True, settings) for number in range(2))
    client = Client(first.addresses)
    try:
        first.start([*ONCE, *TWICE])
        first.wait([*ONCE, *TWICE])
        second.start(TWICE)
        second.wait(TWICE)
        world = list(divided(PAPERS, SEED))
        publish(client, [publication for publication, _ in world])
        asked = [asked.query for _, some in world for asked in some]
        yield Pair(first, second, [Query(each.context, title=each.title) for each in asked])
    finally:
        client.close()
        second.stop(TWICE)
        first.stop([*TWICE, *ONCE])


@dataclass
class Load:
    """Calls one after the other, from a few tasks, until told to stop."""

    endings: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def calls(self) -> int:
        return sum(self.endings.values())

    async def repeat(self, kind: str, call: Callable[[], Awaitable[str]]) -> None:
        while not self.over.is_set():
            started = time.monotonic()
            try:
                ending = await call()
            except CitewellError as error:
                ending = f"{error.code.name} {error.reason}: {error.message}"
            self.endings[f"{kind}: {ending}"] += 1
            self.slowest = max(self.slowest, time.monotonic() - started)


@pytest.mark.timeout(1800)
async def test_no_call_fails_while_every_service_restarts(
    pair: Pair, record_property: Callable[[str, object], None]
) -> None:
    load, queries, numbers = Load(), itertools.cycle(pair.queries), itertools.count()
    tokens: list[str] = []
    client = AsyncCitewell(pair.address("recommender"), ingestion=pair.address("ingestion"), timeout=DEADLINE)
    async with client:

        async def recommend() -> str:
            answer = await client.recommend(next(queries), Options(rerank_depth=5))
            assert answer.items
            return "OK" if not answer.degraded else f"OK, {answer.degraded[0].reason}"

        async def tell() -> str:
            number = next(numbers)
            receipt = await client.publish(Publication(f"rolled-{number}", 1, f"Told while rolling, {number}"))
            tokens.append(receipt.token)
            return "OK"

        calls = [recommend, recommend, recommend, tell]
        tasks = [asyncio.create_task(load.repeat(call.__name__, call)) for call in calls]
        try:
            for stack, service in pair.restarts():
                before = load.calls
                await asyncio.to_thread(stack.stop, [service])
                stack.start([service])
                await asyncio.to_thread(stack.wait, [service])
                enough = before + len(calls)
                await asyncio.to_thread(wait_until, lambda least=enough: load.calls >= least, "calls go on")
        finally:
            load.over.set()
            await asyncio.gather(*tasks)
        record_property("endings", dict(load.endings))
        record_property("slowest_seconds", round(load.slowest, 2))
        failed = {ending: count for ending, count in load.endings.items() if ": OK" not in ending}
        assert not failed, f"of {load.calls} calls"
        for token in tokens:
            status = await client.status(token, wait=True)
            assert status.state.value == "SEARCHABLE", status
