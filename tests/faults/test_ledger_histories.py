"""Property tests: random histories of events, crashes, restores and views leave a ledger equal to a reference model."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from citewell.index import index
from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.profiler.index_client import IndexClient
from citewell.profiler.index_views import IndexWriter
from citewell.profiler.ledger import filling
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.lifecycle import (
    adopt_restored,
    open_ledger,
    retire_view,
    start_rebuild,
    try_switch,
)
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import AT_ONCE
from citewell.runtime import faults
from citewell.runtime.access import Access
from citewell.runtime.admission import Admission, AdmissionLimits
from citewell.runtime.channels import open_channel
from citewell.runtime.errors import FailedPrecondition, Unavailable
from citewell.runtime.interceptors import CallInterceptor
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.publications import Event, Publication, Retraction
from tests.faults.history_checks import CheckedHistories
from tests.faults.history_world import CITES, NAMES, PARTITIONS, TEXTS, WEIGHTS, copy_ledger
from tests.ledger_world import HashEncoder

# Shrinking a failing example takes longer than the test. Turn it on to debug a failure.
PHASES = tuple(Phase) if os.environ.get("CITEWELL_TEST_SHRINK") else (Phase.explicit, Phase.reuse, Phase.generate)


class Crash(BaseException):
    """Simulates the death of the process. A BaseException, so that no `except Exception` catches it."""


def die() -> None:
    raise Crash


@contextmanager
def at(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Runs the action when the fault point is reached for the first time."""

    def once() -> None:
        faults.actions.pop(point)
        action()

    faults.actions[point] = once
    try:
        yield
    finally:
        faults.actions.pop(point, None)


PAPERS, CITED, SAYS = st.sampled_from(NAMES), st.sampled_from(CITES), st.sampled_from(TEXTS)
DATES = st.sampled_from(["", "2019", "2020-03", "2020-03-05", "2021-12-31"])

PUBLICATIONS = st.builds(
    lambda paper, revision, abstract, date, also, cites, bare: Publication(
        paper,
        revision,
        f"Title of {paper}",
        abstract=abstract,
        published=PartialDate.parse(date),
        external_ids=tuple(ExternalId("doi", name) for name in sorted(also)),
        reference_ids=tuple(bare),
        masked_contexts=tuple(MaskedContext(text, cited) for cited, text in cites),
    ),
    PAPERS,
    st.integers(1, 6),
    st.sampled_from(["", "we prove it", "we test it"]),
    DATES,
    st.sets(st.sampled_from("ab"), max_size=2),
    st.lists(st.tuples(CITED, SAYS), max_size=5),
    st.lists(CITED, max_size=2),
)
BODIES = st.one_of(
    PUBLICATIONS,
    PUBLICATIONS,
    PUBLICATIONS,
    st.builds(Retraction, PAPERS, st.integers(1, 6), st.just("withdrawn")),
    PUBLICATIONS.map(lambda publication: replace(publication, title=" ")),  # can never be applied
)
WORKERS, PARTITION, COUNTS = st.integers(0, 1), st.integers(0, PARTITIONS - 1), st.integers(1, 5)


class Histories(CheckedHistories):
    """What publishers, workers, projectors and operators do, in any order."""

    # Actions of publishers

    @rule(bodies=st.lists(BODIES, min_size=1, max_size=6))
    def publish(self, bodies: list[Publication | Retraction]) -> None:
        for body in bodies:
            self.append(Event(f"event-{next(self.names)}", body))

    @rule(number=st.integers(0, 100))
    @precondition(lambda self: any(self.log))
    def publish_again(self, number: int) -> None:
        """A publisher got no answer and publishes the event again."""
        events = [event for partition in self.log for event in partition]
        self.append(events[number % len(events)])

    @rule(number=st.integers(0, 100))
    @precondition(lambda self: self.dead)
    def redrive(self, number: int) -> None:
        self.append(self.dead[number % len(self.dead)])

    # Actions of workers

    @rule(worker=WORKERS, partition=PARTITION, count=COUNTS)
    def deliver(self, worker: int, partition: int, count: int) -> None:
        self.deliver_next(worker, partition, count)

    @rule(
        worker=WORKERS,
        partition=PARTITION,
        count=COUNTS,
        point=st.sampled_from(["after-encode", "after-ledger-commit"]),
    )
    def deliver_and_die(self, worker: int, partition: int, count: int, point: str) -> None:
        places = self.next_places(partition, count)
        with at(point, die), pytest.raises(Crash):
            self.ledgers[worker].apply(self.incoming(places))
        if point == "after-ledger-commit":
            self.note(places, self.expected(places))
        self.restart(worker)

    @rule(worker=WORKERS, partition=PARTITION, count=COUNTS)
    def deliver_and_die_before_the_dead_letter(self, worker: int, partition: int, count: int) -> None:
        self.apply(worker, self.next_places(partition, count))
        self.restart(worker)

    @rule(worker=WORKERS, partition=PARTITION, counts=st.tuples(st.integers(1, 5), st.integers(1, 5)))
    def deliver_late(self, worker: int, partition: int, counts: tuple[int, int]) -> None:
        """A worker pauses after encoding. Another worker takes over its partition, then the first one resumes."""
        late = self.next_places(partition, counts[0])
        with at("after-encode", lambda: self.deliver(1 - worker, partition, counts[1])):
            results = self.ledgers[worker].apply(self.incoming(late))
        self.compare(results, self.expected(late))
        self.note(late, [result.outcome.value for result in results])

    @rule(
        worker=WORKERS,
        partition=PARTITION,
        bounds=st.tuples(st.integers(0, 60), st.integers(1, 8)),
    )
    def replay(self, worker: int, partition: int, bounds: tuple[int, int]) -> None:
        """Replays any range of the log, even offsets that were not applied yet."""
        end = min(bounds[0] + bounds[1], len(self.log[partition]))
        self.bury(worker, self.apply(worker, [(partition, offset) for offset in range(bounds[0], end)]))

    @rule(worker=WORKERS, bodies=st.lists(BODIES, min_size=1, max_size=4))
    def load(self, worker: int, bodies: list[Publication | Retraction]) -> None:
        events = [Event("", body) for body in bodies]
        self.loaded.append(events)
        self.load_again(worker, events)

    # Actions of projectors

    @rule(worker=WORKERS)
    def project(self, worker: int) -> None:
        self.run(self.projectors[worker].step())

    @rule()
    def project_side_by_side(self) -> None:
        async def steps() -> None:
            async with asyncio.TaskGroup() as group:
                for projector in self.projectors * AT_ONCE:
                    group.create_task(projector.step())

        self.run(steps())

    @rule(worker=WORKERS)
    def project_and_die(self, worker: int) -> None:
        with at("after-index-write", die):
            try:
                self.run(self.projectors[worker].step())
            except Crash:
                self.restart(worker)

    @rule(worker=WORKERS)
    def project_and_lose_the_answer(self, worker: int) -> None:
        self.index.lose_answers = True
        with suppress(Unavailable):
            self.run(self.projectors[worker].step())
        self.index.lose_answers = False

    @rule(worker=WORKERS)
    def project_while_events_arrive(self, worker: int) -> None:
        """Marks made after the write to the index, and before the old marks are deleted, must stay."""
        with at("after-index-write", lambda: self.deliver(1 - worker, 0, 3)):
            self.run(self.projectors[worker].step())

    @rule()
    @precondition(lambda self: self.volume)
    def lose_the_index(self) -> None:
        """The index loses all data. Every projector compares it with the ledger before it projects again."""
        assert self.volume
        self.volume.lose_everything()
        for projector in self.projectors:
            self.run(projector.index_views.look())

    # Actions of operators

    @rule(encoder=st.sampled_from(["hash", "other"]), alpha=st.sampled_from([0.0, 0.3]))
    @precondition(lambda self: len(self.views()) < 3)
    def rebuild(self, encoder: str, alpha: float) -> None:
        start_rebuild(self.database, self.encoders[encoder], ProfileWeights(alpha, 0.4), new_name=self.new_name)

    @rule(worker=WORKERS, steps=st.integers(1, 4))
    def fill(self, worker: int, steps: int) -> None:
        for _ in range(steps):
            filling.fill_step(self.ledgers[worker].database, self.ledgers[worker].encoders)

    @rule(number=st.integers(0, 5))
    def switch(self, number: int) -> None:
        views = [view for view in self.views() if view.projected]
        if views:
            try_switch(self.database, views[number % len(views)].name)

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        others = [view for view in self.views() if not view.serving]
        if others:
            name = others[number % len(others)].name
            follow = [view for view in self.views() if view.projected and view.name != name]
            if not any(view.serving or view.switch_when_complete for view in follow):
                with pytest.raises(FailedPrecondition, match="only one"):
                    retire_view(self.database, name)
                return
            retire_view(self.database, name)
            with suppress(FailedPrecondition):  # the index still serves it: it was not told of the switch yet
                self.drop_from_index(name)

    @rule()
    def back_up(self) -> None:
        copy_ledger(self.file, self.folder / "backup.sqlite")
        self.backup = copy.deepcopy((self.model, self.recorded, self.dead))

    @rule()
    @precondition(lambda self: self.backup)
    def restore(self) -> None:
        assert self.backup
        for ledger in self.ledgers:
            ledger.database.close()
        for suffix in ("", "-wal", "-shm"):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.folder / "backup.sqlite", self.file)
        self.model, self.recorded, self.dead = copy.deepcopy(self.backup)
        self.start()
        adopt_restored(self.database, new_name=self.new_name)
        # Replay from where the restored ledger is, and load the files again.
        applied = {position.partition: position.offset for position in self.ledgers[0].applied()}
        self.committed = [min(self.committed[n], applied.get(n, 0)) for n in range(PARTITIONS)]
        for events in self.loaded:
            self.load_again(0, events)


class EdgeHistories(Histories):
    """The same histories with the real index service and its embedded store, over gRPC."""

    def open_index(self) -> IndexWriter:
        settings = IndexSettings(folder=self.folder / "index", min_free_megabytes=0)
        return self.run(self.serve(IndexServer(settings)))

    async def serve(self, service: IndexServer) -> IndexWriter:
        admission = Admission(AdmissionLimits(calls=100, request_bytes=1 << 30, wait_seconds=30.0), time.monotonic)
        self.service, self.server = (
            service,
            grpc.aio.server(interceptors=[CallInterceptor(30.0, admission, Access(None))]),
        )
        service.register(self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        await service.start()
        self.channel = open_channel(f"127.0.0.1:{port}")
        return IndexClient(self.channel)

    def close_index(self) -> None:
        async def close() -> None:
            await self.channel.close()
            await self.server.stop(None)
            await self.service.stop()

        self.run(close())


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new ledger to copy. Also makes the steps of filling so small that histories can interrupt them."""
    monkeypatch.setattr(filling, "PAPERS_ENCODED", 2)
    monkeypatch.setattr(filling, "PAPERS_SUMMED", 2)
    # The index runs in this process. A simulated crash in it would lose the answer but keep the connection open, so its
    # caller would wait for ever.
    monkeypatch.setattr(index, "faults", SimpleNamespace(point=lambda name: None))
    database = Database(f"sqlite:///{tmp_path}/new.sqlite")
    open_ledger(database, HashEncoder(), WEIGHTS, new_name=lambda: "first")
    database.close()
    copy_ledger(tmp_path / "new.sqlite", tmp_path / "template.sqlite")
    return tmp_path / "template.sqlite"


@pytest.mark.fault
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("machine", "few", "many"), [(Histories, 30, 600), (EdgeHistories, 3, 40)], ids=["memory", "qdrant-edge"]
)
def test_any_history_ends_as_the_model_says(
    template: Path, request: pytest.FixtureRequest, machine: type[Histories], few: int, many: int
) -> None:
    long: bool = request.config.getoption("--long")
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"template": template}),
        settings=settings(
            max_examples=many if long else few,
            stateful_step_count=50 if long else 25,
            phases=PHASES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
