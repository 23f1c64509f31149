"""Nine services on hosts of their own, whose links fail in random order. Needs `own_network()` in front.

    unshare … python -m tests.faults.hosts --seeds 0 1 2 --rounds 25

Recommenders, rerankers, profilers and ingestions run twice, on Kafka and PostgreSQL; the embedded index runs once.
Prints one JSON object for each seed: what was done, how calls ended, and what must not happen (`wrong`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from citewell.commands.stack import DEFAULT_PORT_BASE, PORTS, Stack
from tests.demo_world import Asked, divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.faults.callers import PATIENCE, USUAL, Callers, whole
from tests.servers.hosts import Host, Network
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics, log_on
from tests.servers.postgres import PostgresServer
from tests.servers.processes import wait_until
from tests.tiny_models import write_tiny_encoder

TWICE = ("profiler", "reranker", "ingestion", "recommender")
SERVICE_PORTS = {service: DEFAULT_PORT_BASE + offset for service, offset in PORTS.items()}
HOSTS = ("log", "ledger", "index", *(f"{service}-{number}" for service in TWICE for number in (1, 2)))
CALLS = {
    "client": ("recommender", "ingestion"),
    "recommender": ("profiler", "index", "reranker", "ingestion"),
    "profiler": ("index", "ledger"),
    "ingestion": ("profiler", "log"),
}
"""Who calls whom."""
RERANKER_REASONS = {"RERANKER_UNAVAILABLE", "RERANK_TIMEOUT"}
PAPERS, SEED = 200, 5


def replicas(service: str) -> list[str]:
    """The hosts of a service."""
    return [f"{service}-1", f"{service}-2"] if service in TWICE else [service]


LINKS = [
    (source, target)
    for caller, callees in CALLS.items()
    for callee in callees
    for source in replicas(caller)
    for target in replicas(callee)
]


@dataclass
class HostedStack(Stack):
    """A stack whose services run on hosts of their own."""

    hosts: Mapping[str, Host] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[str, str]:
        told = {service: self.hosts[service].address for service in self.ports if service in self.hosts}
        return {service: f"{told.get(service, 'nowhere')}:{port}" for service, port in self.ports.items()}

    def _command(self, service: str) -> list[str]:
        return [*self.hosts[service].inside, *super()._command(service)]


@dataclass
class System:
    """All processes, and the network between their hosts."""

    network: Network
    stacks: tuple[Stack, Stack]
    addresses: Mapping[str, str]
    """service → addresses of all its processes, over which gRPC balances."""
    asked: list[Asked]

    @contextmanager
    def frozen(self, host: str) -> Iterator[None]:
        """SIGSTOP until the end of the block."""
        service, _, number = host.partition("-")
        process = self.stacks[int(number or 1) - 1].processes[service]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    @contextmanager
    def cut(self, source: str, target: str) -> Iterator[None]:
        """Nothing arrives in either direction until the end of the block, and nobody is told."""
        with self.network.lost(source, target), self.network.lost(target, source):
            yield

    def drawn(self, draw: random.Random) -> tuple[str, AbstractContextManager[None]]:
        """A disturbance and its name."""
        hosts = [host for host in HOSTS if not host.startswith("recommender")]
        match draw.choice(["frozen", "unplugged", "slow", "cut", "cut", "lost", "prohibited"]):
            case "frozen":
                host = draw.choice([host for host in hosts if host not in ("log", "ledger")])
                return f"{host} frozen", self.frozen(host)
            case "unplugged":
                host = draw.choice(hosts)
                return f"{host} unplugged", self.network.unplugged(host)
            case "slow":
                host = draw.choice(hosts)
                return f"{host} slow", self.network.slow(host)
            case how:
                source, target = draw.choice(LINKS)
                cut = {"cut": self.cut, "lost": self.network.lost, "prohibited": self.network.prohibited}[how]
                return f"{source} → {target} {how}", cut(source, target)


@contextmanager
def running(folder: Path) -> Iterator[System]:
    """The system with some papers, all of them searchable."""
    network = Network(HOSTS)
    hosts = network.hosts
    with ExitStack() as ends:
        broker = KafkaBroker(folder / "kafka", host=hosts["log"].address, inside=hosts["log"].inside)
        database = PostgresServer(hosts["ledger"].address, hosts["ledger"].inside)
        ends.callback(broker.kill)
        ends.callback(database.remove)
        broker.start()
        database.start()
        addresses = {
            service: "ipv4:" + ",".join(f"{hosts[host].address}:{port}" for host in replicas(service))
            for service, port in SERVICE_PORTS.items()
            if service in (*TWICE, "index")
        }
        settings = {
            **log_on(fresh_topics(broker, partitions=4)),
            "CITEWELL_PROFILER__LEDGER_URL": database.fresh_database(),
            "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
            "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
            "CITEWELL_PROFILER__ENCODER_THREADS": "1",
            "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "0.5",
            "CITEWELL_INGESTION__PACE__APPLY_SECONDS": "5",
            "CITEWELL_RECOMMENDER__BREAKER_REST_SECONDS": "0.5",
            **{
                f"CITEWELL_{caller.upper()}__{callee.upper()}_ADDRESS": addresses[callee]
                for caller, callees in CALLS.items()
                for callee in callees
                if caller != "client" and callee in addresses
            },
        }
        stacks = []
        for number in (1, 2):
            own = {service: hosts[f"{service}-{number}"] for service in TWICE} | {"index": hosts["index"]}
            listen = {f"CITEWELL_{service.upper()}__HOST": host.address for service, host in own.items()}
            stack = HostedStack(folder / str(number), SERVICE_PORTS, True, settings | listen, hosts=own)
            services = ("index", *TWICE) if number == 1 else TWICE
            ends.callback(stack.stop, services[::-1])
            stack.start(services)
            stack.wait(services)
            stacks.append(stack)
        world = list(divided(PAPERS, SEED))
        client = Client(addresses)
        ends.callback(client.close)
        publish(client, [publication for publication, _ in world])
        yield System(network, (stacks[0], stacks[1]), addresses, [asked for _, some in world for asked in some])


def random_order(system: System, seed: int, rounds: int) -> dict[str, object]:
    """Disturbs links and hosts in random order while callers ask and publish; what came of it."""
    draw = random.Random(seed)
    callers = Callers(system.addresses, system.asked)
    done = []
    with callers.calling():
        for _ in range(rounds):
            with ExitStack() as disturbances:
                # Two of one link would undo each other.
                chosen = dict(system.drawn(draw) for _ in range(draw.randint(1, 2)))
                for name, disturbance in chosen.items():
                    done.append(name)
                    disturbances.enter_context(disturbance)
                callers.over.wait(draw.uniform(0.5, 3.0))
            callers.over.wait(draw.uniform(0.0, 1.0))
        with suppress(TimeoutError):  # the report tells
            wait_until(lambda: callers.endings["OK"] > 0, "somebody is answered", PATIENCE)
    return told(callers, f"random order, seed {seed}", done)


def without_rerankers(system: System) -> dict[str, object]:
    """Both rerankers' hosts are unplugged; every answer must come, and say so."""
    callers = Callers(system.addresses, system.asked, deadlines=(10.0,))
    client = Client(system.addresses)
    wait_until(lambda: whole(client, system.asked[0]), "a whole answer before", PATIENCE)
    client.close()
    with callers.calling(), ExitStack() as disturbances:
        for host in replicas("reranker"):
            disturbances.enter_context(system.network.unplugged(host))
        wait_until(lambda: sum(callers.endings.values()) >= 12, "twelve answers", PATIENCE)
    if callers.endings.keys() != {"OK"}:
        callers.wrong.append(f"not every call was answered: {dict(callers.endings)}")
    reasons = set[str]().union(*callers.answers)
    if not reasons & RERANKER_REASONS or not reasons <= RERANKER_REASONS | USUAL:
        callers.wrong.append(f"answers name these reasons: {sorted(reasons)}")
    return told(callers, "both rerankers unplugged", ["reranker-1 unplugged", "reranker-2 unplugged"])


def told(callers: Callers, name: str, done: list[str]) -> dict[str, object]:
    """The report of one run, once the system has recovered."""
    answered = searchable = None
    try:
        answered, searchable = callers.recovered()
    except (TimeoutError, AssertionError, grpc.RpcError) as error:
        callers.wrong.append(f"not recovered: {error}")
    if not callers.endings["OK"]:
        callers.wrong.append("nobody was answered")
    return {
        "name": name,
        "disturbances": done,
        "endings": dict(callers.endings),
        "acknowledged": len(callers.tokens),
        "seconds_to_a_whole_answer": answered,
        "seconds_to_all_searchable": searchable,
        "wrong": callers.wrong,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seeds", type=int, nargs="*", default=[0])
    options.add_argument("--rounds", type=int, default=3, help="disturbances of one or two things in each")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="citewell-hosts-") as folder, running(Path(folder)) as system:
        reports = [without_rerankers(system)]
        print(json.dumps(reports[-1], ensure_ascii=False), flush=True)
        for seed in chosen.seeds:
            reports.append(random_order(system, seed, chosen.rounds))
            print(json.dumps(reports[-1], ensure_ascii=False), flush=True)
        sys.exit(any(report["wrong"] for report in reports))


if __name__ == "__main__":
    main()
