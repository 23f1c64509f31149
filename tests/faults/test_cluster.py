"""Broker, database, connections and workers fail while events come in: P1 and P2 hold, and progress resumes by itself.

Index, profiler and ingestion are processes on a real broker and a real PostgreSQL. Proxies between them can drop or
delay traffic.
"""

import asyncio
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc
import psycopg
import pytest

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.logs.event_log import Record
from citewell.ingestion.logs.kafka.log import KafkaLog
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.scholarly.publications import Publication
from tests.e2e.client import Client
from tests.faults.events import PATIENCE, Publisher, World, bodies_of, check_effects, dead_letters, replay_everything
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics
from tests.servers.postgres import PostgresServer
from tests.servers.processes import wait_until
from tests.servers.proxy import Proxy
from tests.tiny_models import write_tiny_encoder

pytestmark = pytest.mark.fault

SERVICES = ("index", "profiler", "ingestion")
SESSION_SECONDS = 3.0
SHORT_OUTAGE_SECONDS, LONG_OUTAGE_SECONDS = 4.0, 60.0
FULL_SECONDS = 20.0
"""Long enough: a full disk refuses writes at once, and retries are at most half a second apart."""


@dataclass
class Cluster:
    """The three services, the servers they use, and the proxies between them."""

    stack: Stack
    broker: KafkaBroker
    postgres: PostgresServer
    broker_link: Proxy
    index_link: Proxy
    log: KafkaSettings
    outage_seconds: float
    more: list[Stack] = field(default_factory=list)
    poisoned: int = 0
    """Number of records in the log that are not events."""

    def start_worker(self, **environment: str) -> Stack:
        """Starts one more ingestion process in the same consumer group."""
        profiler = {"CITEWELL_INGESTION__PROFILER_ADDRESS": self.stack.addresses["profiler"]}
        settings = {**self.stack.settings, **profiler, **environment}
        worker = Stack(self.stack.data.with_name(f"worker-{len(self.more)}"), choose_ports(0), True, settings)
        worker.start(["ingestion"])
        self.more.append(worker)
        worker.wait(["ingestion"])
        return worker

    def stop_workers(self) -> None:
        while self.more:
            self.more.pop().stop(["ingestion"])

    def wait_for_outage(self, at_most: float = math.inf) -> None:
        """Lets an outage last for its configured time, or for `at_most` seconds."""
        time.sleep(min(self.outage_seconds, at_most))


def broker_killed(cluster: Cluster) -> None:
    cluster.broker.kill()
    cluster.broker.start()


def broker_unreachable(cluster: Cluster) -> None:
    cluster.broker_link.cut()
    cluster.wait_for_outage()
    cluster.broker_link.restore()


def broker_swallowed(cluster: Cluster) -> None:
    cluster.broker_link.blackhole()
    cluster.wait_for_outage()
    cluster.broker_link.restore()


def broker_disk_full(cluster: Cluster) -> None:
    """The broker exits when its disk is full. Publishing fails until the operator has freed space and restarted it."""
    cluster.broker.fill_disk()
    wait_until(cluster.broker.ended, "the broker gave up", PATIENCE)
    client = Client(cluster.stack.addresses)
    try:
        with pytest.raises(grpc.RpcError) as refused:
            client.publish(Publication("unheard", 1, "Never acknowledged"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    finally:
        client.close()
    cluster.wait_for_outage(FULL_SECONDS)
    cluster.broker.start()


def broker_resets_and_delays(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.broker_link.delay(0.3)
        time.sleep(SHORT_OUTAGE_SECONDS / 5)
        cluster.broker_link.reset()


def database_restarted(cluster: Cluster) -> None:
    for shock in (cluster.postgres.restart, cluster.postgres.kill, cluster.postgres.restart):
        shock()
        cluster.postgres.start()


_FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON papers EXECUTE FUNCTION full_disk();
"""


def disks_full(cluster: Cluster) -> None:
    """First the database fails with its error for a full disk; then the index finds too little free space."""
    address = cluster.stack.settings["CITEWELL_PROFILER__LEDGER_URL"].replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(_FULL)
        cluster.wait_for_outage(FULL_SECONDS)
        connection.execute("DROP FUNCTION full_disk CASCADE")
    usual = cluster.stack.settings
    for settings in ({**usual, "CITEWELL_INDEX__MIN_FREE_MEGABYTES": str(1 << 40)}, usual):
        cluster.stack.stop(["index"])
        cluster.stack.settings = settings
        cluster.stack.start(["index"])
        if settings is not usual:
            cluster.wait_for_outage(FULL_SECONDS)
    cluster.stack.wait(["index"])


def index_answers_lost(cluster: Cluster) -> None:
    """Writes to the index succeed, but the profiler does not receive the answers."""
    for _ in range(5):
        cluster.index_link.delay(0.2)
        time.sleep(0.3)
        cluster.index_link.reset()
    cluster.index_link.blackhole()
    time.sleep(SHORT_OUTAGE_SECONDS)
    cluster.index_link.restore()


def workers_scaled(cluster: Cluster) -> None:
    """One worker, then four, then two. Workers are stopped with SIGKILL."""
    for _ in range(3):
        cluster.start_worker()
    for worker in cluster.more[:2]:
        worker.kill("ingestion")


def worker_oversleeps(cluster: Cluster) -> None:
    """The first worker is paused, loses its partitions to another one, and then resumes with its old batch."""
    cluster.start_worker()
    sleeper = cluster.stack.processes["ingestion"]
    sleeper.send_signal(signal.SIGSTOP)
    time.sleep(2 * SESSION_SECONDS)
    sleeper.send_signal(signal.SIGCONT)


# A sitecustomize module, which Python imports at start-up. It shifts the clock of the process by CLOCK_SHIFT seconds.
_WRONG_CLOCK = """
import datetime, os, time
shift, true_time = float(os.environ["CLOCK_SHIFT"]), time.time
time.time = lambda: true_time() + shift
class datetime_(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=shift)
datetime.datetime = datetime_
"""


def clocks_apart(cluster: Cluster) -> None:
    """Three workers whose clocks are right, five minutes fast, and five minutes slow."""
    folder = cluster.stack.data.with_name("wrong-clock")
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_WRONG_CLOCK)
    for shift in ("300", "-300"):
        cluster.start_worker(PYTHONPATH=str(folder), CLOCK_SHIFT=shift)


_POISON = b"\xff\xffpoison"


def poisoned_and_repeated(cluster: Cluster) -> None:
    """The log contains records that are not events, and repeats earlier records in another order."""

    async def spoil() -> None:
        log = KafkaLog(cluster.log.model_copy(update={"bootstrap_servers": cluster.broker.address}))
        await log.start()
        try:
            known: list[Record] = []
            for state in await log.partitions("nobody"):
                known += await log.read(state.partition, state.first_offset, state.end_offset, 1000)
            random.Random(7).shuffle(known)
            for record in known[:30]:
                await log.append(record.key, record.value, record.headers)
                await log.append("poison", _POISON, {})
                cluster.poisoned += 1 + (record.value == _POISON)  # the repeated record may be poison too
        finally:
            await log.stop()

    asyncio.run(spoil())


FAULTS: tuple[Callable[[Cluster], None], ...] = (
    broker_killed,
    broker_unreachable,
    broker_swallowed,
    broker_disk_full,
    broker_resets_and_delays,
    database_restarted,
    disks_full,
    index_answers_lost,
    workers_scaled,
    worker_oversleeps,
    clocks_apart,
    poisoned_and_repeated,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as ends:
        broker_link, index_link = (ends.enter_context(Proxy()) for _ in range(2))
        broker = KafkaBroker(folder / "broker", advertised_link_port=broker_link.port)
        ends.callback(broker.kill)
        postgres = PostgresServer()
        ends.callback(postgres.remove)
        broker.start()
        postgres.start()
        broker_link.target_port = broker.link_port
        log = fresh_topics(
            broker,
            partitions=4,
            bootstrap_servers=f"127.0.0.1:{broker_link.port}",
            session_seconds=SESSION_SECONDS,
            request_seconds=2.0,
            delivery_seconds=4.0,
        )
        ports = choose_ports(0)
        index_link.target_port = ports["index"]
        told = log.model_dump(mode="json", exclude_defaults=True)
        settings = {
            "CITEWELL_INGESTION__LOG__KIND": "kafka",
            **{f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in told.items()},
            "CITEWELL_INGESTION__PACE__MOST_RECORDS": "4",
            "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "0.5",
            "CITEWELL_PROFILER__LEDGER_URL": postgres.fresh_database(),
            "CITEWELL_PROFILER__INDEX_ADDRESS": f"127.0.0.1:{index_link.port}",
            "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
            "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
            "CITEWELL_PROFILER__ENCODER_THREADS": "1",
        }
        stack = Stack(folder / "data", ports, cluster=True, settings=settings)
        ends.callback(stack.stop, SERVICES[::-1])
        stack.start(SERVICES)
        stack.wait(SERVICES)
        long = pytestconfig.getoption("long")
        outage = LONG_OUTAGE_SECONDS if long else SHORT_OUTAGE_SECONDS
        yield Cluster(stack, broker, postgres, broker_link, index_link, log, outage)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    long = metafunc.config.getoption("long")
    seeds = int(os.environ.get("CITEWELL_FAULT_SEEDS", 3 if long else 1))
    metafunc.parametrize(
        ("fault", "seed"),
        [(fault, seed) for fault in FAULTS for seed in range(seeds)],
        ids=lambda value: getattr(value, "__name__", str(value)),
    )


@pytest.mark.timeout(420)
def test_nothing_acknowledged_is_lost(
    cluster: Cluster, fault: Callable[[Cluster], None], seed: int, record_property: Callable[[str, object], None]
) -> None:
    name = f"{fault.__name__}-{seed}"
    draw = random.Random(name)
    bodies = bodies_of(draw, name)
    client = Client(cluster.stack.addresses)
    publisher = Publisher(client)
    failed: list[BaseException] = []

    def publish() -> None:
        try:
            publisher.publish(bodies, name)
        except BaseException as error:
            failed.append(error)

    publishing = threading.Thread(target=publish)
    strikes_after = draw.randint(2, len(bodies) // 2)
    try:
        publishing.start()
        wait_until(lambda: len(publisher.acknowledged) >= strikes_after or bool(failed), "a feed under way", PATIENCE)
        fault(cluster)
        over = time.monotonic()
        publishing.join()
        assert not failed
        assert len(publisher.acknowledged) == len(bodies)
        check_effects(client, publisher.acknowledged, bodies, name)
        record_property("seconds_to_recover", round(time.monotonic() - over, 1))
        before, dead = World.seen(client, name), dead_letters(client)
        assert replay_everything(client).applied == 0
        assert World.seen(client, name) == before
        assert dead_letters(client) == dead
        assert sum(event == letter for letter, event in dead.items()) == cluster.poisoned
    finally:
        publishing.join()
        cluster.stop_workers()
        client.close()
