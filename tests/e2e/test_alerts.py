"""Every alert fires on running services when it should, and ends afterwards: a real Prometheus, in fast motion.

By default only the loss of the reranker; `--long` (make alerts) tries every rule.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import grpc
import pytest

from citewell.profiler.v1 import ledger_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.publications import Publication
from tests.e2e.client import Client
from tests.e2e.conftest import Running
from tests.e2e.losses import frozen, killed, reconfigured
from tests.servers.processes import wait_until
from tests.servers.prometheus import ALERTS, Prometheus

FIRING_SECONDS = 100.0

Cause = Callable[[Running], AbstractContextManager[None]]


@contextmanager
def _asking(running: Running, callers: int = 1, *, deadline: float = 20.0, rerank: bool = True) -> Iterator[None]:
    """Asks the recommender again and again, from several threads."""
    over = threading.Event()
    queries = itertools.cycle([asked.query for asked in running.queries])

    def ask() -> None:
        client = Client(running.stack.addresses)
        while not over.is_set():
            with suppress(grpc.RpcError):
                client.recommend(next(queries), messages.Options(rerank=rerank), seconds=deadline)
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _publish(running: Running, title: str = "A paper", paper: str = "") -> None:
    running.client.publish(Publication(paper or f"alert-{secrets.token_hex(4)}", 1, title))


@contextmanager
def reranker_lost(running: Running) -> Iterator[None]:
    with killed(running, "reranker"), _asking(running):
        yield


@contextmanager
def nothing_scraped(running: Running) -> Iterator[None]:
    yield  # the test itself takes the targets from Prometheus


@contextmanager
def a_damaged_row(running: Running) -> Iterator[None]:
    """The bytes of a paper in the ledger are no publication: whoever reads it meets a defect."""
    paper = next(iter(running.publications))
    ledger = sqlite3.connect(running.stack.data / "ledger.sqlite", timeout=30, isolation_level=None)
    try:
        ((sound,),) = ledger.execute("SELECT publication FROM bodies WHERE paper_id = ?", [paper]).fetchall()
        ledger.execute("UPDATE bodies SET publication = ? WHERE paper_id = ?", [b"\xff\xff", paper])
        try:
            with pytest.raises(grpc.RpcError) as error:
                running.client.ledger.CheckProfiles(ledger_pb2.CheckProfilesRequest(), timeout=30)
            assert error.value.code() is grpc.StatusCode.INTERNAL  # type: ignore[attr-defined]
            yield
        finally:
            ledger.execute("UPDATE bodies SET publication = ? WHERE paper_id = ?", [sound, paper])
    finally:
        ledger.close()


@contextmanager
def index_frozen(running: Running) -> Iterator[None]:
    with frozen(running, "index"), _asking(running, deadline=0.5):
        _publish(running)
        yield


@contextmanager
def index_stutters(running: Running) -> Iterator[None]:
    """Frozen for 2.5 seconds at a time: answers come, but late."""
    over = threading.Event()

    def stutter() -> None:
        while not over.is_set():
            with frozen(running, "index"):
                over.wait(2.5)
            over.wait(0.1)

    thread = threading.Thread(target=stutter)
    with _asking(running, callers=2, rerank=False):
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def one_call_at_a_time(running: Running) -> Iterator[None]:
    with reconfigured(running, "recommender", MOST_CALLS="1"), _asking(running, callers=4):
        yield


@contextmanager
def profiler_frozen(running: Running) -> Iterator[None]:
    with frozen(running, "profiler"):
        _publish(running)
        yield


@contextmanager
def an_event_too_large_for_the_profiler(running: Running) -> Iterator[None]:
    """The worker cannot tell whether the event or the settings are wrong: it stands still and says so."""
    contexts = tuple(MaskedContext(f"{number} TARGETCIT " + 15_000 * "w", f"cited-{number}") for number in range(100))
    with reconfigured(running, "profiler", MAX_MESSAGE_MEGABYTES="1"):
        running.client.publish(Publication(f"large-{secrets.token_hex(4)}", 1, "Large", masked_contexts=contexts))
        yield


@contextmanager
def a_contradiction(running: Running) -> Iterator[None]:
    paper = f"alert-{secrets.token_hex(4)}"
    _publish(running, "One", paper)
    _publish(running, "Another one", paper)
    yield


@contextmanager
def index_lost_with_a_full_disk(running: Running) -> Iterator[None]:
    running.stack.kill("index")
    shutil.rmtree(running.stack.data / "index")
    running.stack.start(["index"])
    with reconfigured(running, "index", MIN_FREE_MEGABYTES=str(1 << 40)):
        yield


@contextmanager
def other_weights(running: Running) -> Iterator[None]:
    with reconfigured(running, "profiler", ALPHA="0.9", PROJECT="false"):
        yield


CAUSES: dict[Cause, set[str]] = {
    reranker_lost: {"CitewellTargetDown", "CitewellDependencyDown", "CitewellDegraded", "CitewellBreakerOpen"},
    nothing_scraped: {"CitewellNotScraped"},
    a_damaged_row: {"CitewellDefect"},
    index_frozen: {"CitewellDeadlines", "CitewellSnapshotOld"},
    index_stutters: {"CitewellSlow"},
    one_call_at_a_time: {"CitewellShedding"},
    profiler_frozen: {"CitewellLag"},
    an_event_too_large_for_the_profiler: {"CitewellWorkerHalted"},
    a_contradiction: {"CitewellDeadLetters"},
    index_lost_with_a_full_disk: {"CitewellViewIncomplete", "CitewellIndexRefilled", "CitewellStoreUnusable"},
    other_weights: {"CitewellWeightsDiffer"},
}
"""What goes wrong → the alerts that it must fire."""


def test_every_alert_has_a_cause_here() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    assert sorted(alerts) == sorted(itertools.chain.from_iterable(CAUSES.values()))


@pytest.fixture(scope="module")
def prometheus(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus"), running.metrics_ports) as started:
        yield started


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cause" in metafunc.fixturenames:
        causes = list(CAUSES) if metafunc.config.getoption("long") else [reranker_lost]
        metafunc.parametrize("cause", causes, ids=lambda cause: cause.__name__)


# One set-up is enough: the rules do not know where log and ledger are.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("running", ["embedded"], indirect=True, scope="session")
def test_an_alert_fires_when_it_should_and_ends_afterwards(
    running: Running,
    prometheus: Prometheus,
    cause: Cause,
    record_property: Callable[[str, object], None],
) -> None:
    expected = CAUSES[cause]
    wait_until(lambda: not expected & prometheus.firing().keys(), "no such alert before", FIRING_SECONDS)
    assert prometheus.problems() == []
    with cause(running):
        began = time.monotonic()
        if cause is nothing_scraped:
            prometheus.scrape({})
        wait_until(lambda: expected <= prometheus.firing().keys(), f"{expected} fire", FIRING_SECONDS, every=0.25)
        record_property("seconds_until_firing", round(time.monotonic() - began, 1))
        record_property("fired", ", ".join(sorted(prometheus.firing())))
        if cause is nothing_scraped:
            prometheus.scrape(running.metrics_ports)
    wait_until(lambda: not expected & prometheus.firing().keys(), f"{expected} end", 2 * FIRING_SECONDS, every=0.25)
