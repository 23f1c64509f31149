"""Links between five services are cut, stalled and delayed in random order, and services are frozen.

Whoever asks meanwhile hears within the deadline (P4), hears of a missing reranker in the answer (P5), and every
acknowledged event becomes searchable (P1).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from citewell.commands.stack import Stack, choose_ports
from tests.demo_world import Asked, divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.faults.callers import PATIENCE, USUAL, Callers, whole
from tests.servers.processes import wait_until
from tests.servers.proxy import Proxy
from tests.tiny_models import write_tiny_encoder

pytestmark = pytest.mark.fault

SERVICES = ("index", "profiler", "reranker", "ingestion", "recommender")
LINKS = (
    ("recommender", "profiler"),
    ("recommender", "index"),
    ("recommender", "reranker"),
    ("recommender", "ingestion"),
    ("profiler", "index"),
    ("ingestion", "profiler"),
)
RERANKER_REASONS = {"RERANKER_UNAVAILABLE", "RERANK_TIMEOUT"}


@dataclass
class System:
    """Five services whose calls to each other go through proxies."""

    stack: Stack
    links: dict[tuple[str, str], Proxy]
    asked: list[Asked]

    @contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """SIGSTOP until the end of the block."""
        process = self.stack.processes[service]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    @contextmanager
    def disturbed(self, link: tuple[str, str], how: str) -> Iterator[None]:
        """The link is cut, stalls, is reset, or delays every packet until the end of the block."""
        proxy = self.links[link]
        match how:
            case "cut":
                proxy.cut()
            case "stalled":
                proxy.blackhole()
            case "reset":
                proxy.reset()
            case _:
                proxy.delay(0.3)
        try:
            yield
        finally:
            proxy.restore()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("links")
    ports = choose_ports(0)
    with ExitStack() as ends:
        links = {link: ends.enter_context(Proxy(ports[link[1]])) for link in LINKS}
        settings = {
            f"CITEWELL_{caller.upper()}__{callee.upper()}_ADDRESS": f"127.0.0.1:{proxy.port}"
            for (caller, callee), proxy in links.items()
        }
        settings |= {
            "CITEWELL_RECOMMENDER__BREAKER_REST_SECONDS": "0.5",
            "CITEWELL_RECOMMENDER__RERANK_TIMEOUT_SECONDS": "3",
            "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "0.5",
            "CITEWELL_INGESTION__PACE__APPLY_SECONDS": "5",
            "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
            "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
        }
        stack = Stack(folder / "data", ports, settings=settings)
        ends.callback(stack.stop, SERVICES[::-1])
        stack.start(SERVICES)
        stack.wait(SERVICES)
        world = list(divided(200, 5))
        client = Client(stack.addresses)
        ends.callback(client.close)
        publish(client, [publication for publication, _ in world])
        yield System(stack, links, [asked for _, some in world for asked in some])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(5 if metafunc.config.getoption("long") else 1))
    if "loss" in metafunc.fixturenames:
        losses = ["frozen", "cut", "stalled", "reset", "delayed"]
        metafunc.parametrize("loss", losses if metafunc.config.getoption("long") else losses[:1])


@pytest.mark.timeout(420)
def test_whoever_asks_hears_in_time_while_links_are_cut_in_random_order(
    system: System, seed: int, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    draw = random.Random(seed)
    callers = Callers(system.stack.addresses, system.asked)
    done = []
    with callers.calling():
        for _ in range(25 if pytestconfig.getoption("long") else 3):
            with ExitStack() as disturbances:
                for _ in range(draw.randint(1, 2)):
                    if draw.random() < 0.3:
                        service = draw.choice([name for name in SERVICES if name != "recommender"])
                        done.append(f"{service} frozen")
                        disturbances.enter_context(system.frozen(service))
                    else:
                        link, how = draw.choice(LINKS), draw.choice(["cut", "stalled", "reset", "delayed"])
                        done.append(f"{' → '.join(link)} {how}")
                        disturbances.enter_context(system.disturbed(link, how))
                callers.over.wait(draw.uniform(0.5, 3.0))
            callers.over.wait(draw.uniform(0.0, 1.0))
        wait_until(lambda: callers.endings["OK"] > 0, "somebody is answered", PATIENCE)
    record_property("disturbances", ", ".join(done))
    record_property("endings", dict(callers.endings))
    assert not callers.wrong, done
    record_property("seconds_to_recover", callers.recovered())


def test_without_the_reranker_every_answer_comes_and_says_so(system: System, loss: str) -> None:
    link = ("recommender", "reranker")
    callers = Callers(system.stack.addresses, system.asked, deadlines=(10.0,))
    client = Client(system.stack.addresses)
    try:
        wait_until(lambda: whole(client, system.asked[0]), "a whole answer before", PATIENCE)
        with callers.calling(), system.frozen("reranker") if loss == "frozen" else system.disturbed(link, loss):
            wait_until(lambda: len(callers.answers) >= 12, "twelve answers", PATIENCE)
        assert not callers.wrong
        assert callers.endings.keys() == {"OK"}
        assert all(reasons <= RERANKER_REASONS | USUAL for reasons in callers.answers)
        if loss in ("cut", "stalled", "frozen"):
            assert any(reasons & RERANKER_REASONS for reasons in callers.answers)
        wait_until(lambda: whole(client, system.asked[0]), "a whole answer again", PATIENCE)
    finally:
        client.close()
