"""kill -9 of a service at each named point while events come in: nothing acknowledged is lost, nothing counts twice."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from citewell.commands.stack import Stack, ended
from citewell.runtime import faults
from tests.e2e.client import Client
from tests.faults.events import PATIENCE, Publisher, World, bodies_of, check_effects, replay_everything
from tests.servers.ledger_stack import SERVICES, ledger_stack

pytestmark = pytest.mark.fault

POINTS = (
    ("ingestion", "after-poll"),
    ("profiler", "after-encode"),
    ("profiler", "after-ledger-commit"),
    ("profiler", "after-index-write"),
    ("index", "after-index-write"),
    ("ingestion", "before-offset-commit"),
    ("ingestion", "during-dead-letter"),
)
LONG_SEEDS = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with ledger_stack(tmp_path_factory.mktemp("killed")) as stack:
        yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    """Restarts the services that the previous test left dead."""
    yield running
    dead = [service for service in SERVICES if running.processes[service].poll() is not None]
    running.start(dead)
    running.wait(dead)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = LONG_SEEDS if metafunc.config.getoption("long") else 1
    metafunc.parametrize(("service", "point"), POINTS)
    metafunc.parametrize("seed", range(int(os.environ.get("CITEWELL_FAULT_SEEDS", seeds))))


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost(
    stack: Stack, service: str, point: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    name = f"{service}-{point}-{seed}"
    draw = random.Random(name)
    # The profiler writes what arrived during the index's restart in one batch, so there may be no second write.
    visit = 1 if point == "after-index-write" else draw.randint(1, 2)
    _restart(stack, service, {faults.VARIABLE: f"{point}:{visit}"})
    client = Client(stack.addresses)
    try:
        bodies = bodies_of(draw, name)
        publisher = Publisher(client)
        publishing = threading.Thread(target=publisher.publish, args=(bodies, name))
        publishing.start()
        died, over = ended(stack.processes[service], PATIENCE), time.monotonic()
        stack.start([service] if died else [])
        publishing.join()
        assert died == -9, f"{service} never came to {point}"
        stack.wait(SERVICES)
        assert len(publisher.acknowledged) == len(bodies)
        check_effects(client, publisher.acknowledged, bodies, name)
        record_property("seconds_to_recover", round(time.monotonic() - over, 1))
        before = World.seen(client, name)
        assert replay_everything(client).applied == 0
        check_effects(client, publisher.acknowledged, bodies, name)
        assert World.seen(client, name) == before
    finally:
        client.close()


def _restart(stack: Stack, service: str, settings: dict[str, str]) -> None:
    stack.stop([service])
    usual = stack.settings
    stack.settings = {**usual, **settings}
    stack.start([service])
    stack.settings = usual
    stack.wait([service])
