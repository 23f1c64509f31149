"""Property tests: random histories of events, crashes, restores and views leave a ledger equal to a reference model."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from citewell.index import index
from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.profiler.doctor import check_profiles
from citewell.profiler.index_client import IndexClient
from citewell.profiler.index_views import IndexWriter
from citewell.profiler.ledger import filling, progress
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.facts import ContextText
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import (
    adopt_restored,
    forget_view,
    open_ledger,
    retire_view,
    start_rebuild,
    try_switch,
)
from citewell.profiler.ledger.points import PaperPoint, span_key
from citewell.profiler.ledger.rules import Result, SourcedEvent
from citewell.profiler.ledger.views import View, read_views, serving_view
from citewell.profiler.profiles import ProfileWeights, normalised
from citewell.profiler.projector import AT_ONCE, Projector
from citewell.runtime import faults
from citewell.runtime.access import Access
from citewell.runtime.admission import Admission, AdmissionLimits
from citewell.runtime.channels import open_channel
from citewell.runtime.errors import FailedPrecondition, NotFound, Unavailable
from citewell.runtime.interceptors import CallInterceptor
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event, Publication, Retraction
from tests.ledger_world import (
    HashEncoder,
    LedgerModel,
    LosingIndex,
    MemoryIndex,
    check_words,
    dump,
    shown_papers,
    shown_spans,
    stored_said,
    stored_sums,
)

WEIGHTS = ProfileWeights(0.8, 0.2)
PARTITIONS = 2
# Keep the files in memory, because syncing a disk would take most of the time. Power cuts have their own tests.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
Place = tuple[int, int]
Answer = TypeVar("Answer")


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


NAMES = "abcd"
CITES = [*NAMES, "stub", "doi:a", "doi:b", "c0"]
TEXTS = ["as in TARGETCIT", "unlike TARGETCIT", "TARGETCIT and OTHERCIT", "see TARGETCIT"]
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


class Histories(RuleBasedStateMachine):
    """A log, two workers and two projectors as separate processes, one ledger, one index, and the reference model."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="citewell-history-", dir=MEMORY))
        self.file = self.folder / "ledger.sqlite"
        shutil.copy(self.template, self.file)
        self.encoders = {name: HashEncoder(name) for name in ("hash", "other")}
        self.loop = asyncio.new_event_loop()
        self.volume: MemoryIndex | None = None
        self.index = LosingIndex(self.open_index())
        self.model = LedgerModel()
        self.log: list[list[Event]] = [[] for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        self.recorded: set[Place] = set()
        self.loaded: list[list[Event]] = []
        self.dead: list[Event] = []
        self.backup: tuple[LedgerModel, set[Place], list[Event]] | None = None
        self.names = iter(range(10**6))
        self.start()

    def open_index(self) -> IndexWriter:
        self.volume = MemoryIndex()
        return self.volume

    def close_index(self) -> None: ...

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.loop.run_until_complete(work)

    def start(self) -> None:
        databases = [Database(f"sqlite:///{self.file}") for _ in range(2)]
        self.ledgers = [Ledger(database, Encoders(self.encoders.__getitem__)) for database in databases]
        self.projectors = [Projector(each.database, each.encoders, self.index, lambda: None) for each in self.ledgers]
        self.database = databases[0]

    def restart(self, worker: int) -> None:
        """Restarts a process. Its caches are lost."""
        self.ledgers[worker].database.close()
        database = Database(f"sqlite:///{self.file}")
        ledger = Ledger(database, Encoders(self.encoders.__getitem__))
        self.ledgers[worker] = ledger
        self.projectors[worker] = Projector(database, ledger.encoders, self.index, lambda: None)
        self.database = self.ledgers[0].database

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

    def append(self, event: Event) -> None:
        self.log[ord(event.body.paper_id[-1]) % PARTITIONS].append(event)

    # Actions of workers

    @rule(worker=WORKERS, partition=PARTITION, count=COUNTS)
    def deliver(self, worker: int, partition: int, count: int) -> None:
        places = self.next_places(partition, count)
        self.bury(worker, self.apply(worker, places))
        self.committed[partition] += len(places)

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

    def load_again(self, worker: int, events: list[Event]) -> None:
        results = self.ledgers[worker].apply([IncomingEvent(SourcedEvent(event)) for event in events])
        self.compare(results, [self.model.deliver(event) for event in events])

    def next_places(self, partition: int, count: int) -> list[Place]:
        start = self.committed[partition]
        return [(partition, offset) for offset in range(start, min(start + count, len(self.log[partition])))]

    def incoming(self, places: list[Place]) -> list[IncomingEvent]:
        return [IncomingEvent(SourcedEvent(self.event(place), LogPosition("log", *place))) for place in places]

    def event(self, place: Place) -> Event:
        return self.log[place[0]][place[1]]

    def expected(self, places: list[Place]) -> list[str]:
        return [self.model.deliver(self.event(place)) for place in places]

    def apply(self, worker: int, places: list[Place]) -> list[Result]:
        results = self.ledgers[worker].apply(self.incoming(places))
        self.compare(results, self.expected(places))
        self.note(places, [result.outcome.value for result in results])
        return results

    def compare(self, results: list[Result], expected: list[str]) -> None:
        assert [result.outcome.value for result in results] == expected

    def note(self, places: list[Place], outcomes: list[str]) -> None:
        self.recorded |= {place for place, outcome in zip(places, outcomes, strict=True) if outcome != "DEAD"}

    def bury(self, worker: int, results: list[Result]) -> None:
        """Records dead events in the ledger, as happens after their dead letters are delivered."""
        dead = [result for result in results if result.outcome is Outcome.DEAD]
        self.ledgers[worker].record_dead(dead)
        for result in dead:
            assert result.position is not None
            place = result.position.partition, result.position.offset
            self.recorded.add(place)
            self.model.bury(result.event_id)
            self.dead.append(self.event(place))

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

    def drop_from_index(self, name: str) -> None:
        with suppress(NotFound):  # the view was not created in the index yet
            self.run(self.index.drop_view(name))
        forget_view(self.database, name)

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

    def new_name(self) -> str:
        return f"name-{next(self.names)}"

    def views(self) -> list[View]:
        with self.database.reading() as connection:
            return read_views(connection)

    # Invariants

    @invariant()
    def sums_are_the_models_bit_for_bit(self) -> None:
        for view in self.views():
            if view.model.state == "READY":
                assert stored_sums(self.database, view.model.hash) == self.model.sums(self.encoders[view.model.name])

    @invariant()
    def words_are_the_models_count_for_count(self) -> None:
        assert stored_said(self.database) == self.model.said()

    @invariant()
    def watermarks_are_true(self) -> None:
        with self.database.reading() as connection:
            applied, searchable = progress.applied(connection), progress.searchable(connection)
            for position in applied:
                prefix = 0
                while (position.partition, prefix) in self.recorded:
                    prefix += 1
                assert position.offset == prefix
            for position in searchable:
                for offset in range(position.offset):
                    state = progress.event_state(connection, LogPosition("log", position.partition, offset))
                    assert state.searchable or state.outcome is Outcome.DEAD

    @invariant()
    def searchable_events_are_in_the_index(self) -> None:
        """Compares with the points in the serving view of the index, not with another function of the ledger."""
        with self.database.reading() as connection:
            view = serving_view(connection).name
            states = progress.event_states(connection, [LogPosition("log", *place) for place in self.recorded])
        told = {
            LogPosition("log", *place): self.event(place).body
            for place in self.recorded
            if self.model.published().get(self.event(place).body.paper_id)
        }
        searchable = {key: body for key, body in told.items() if states[key].searchable}
        if searchable:
            points: list[PaperPoint] = []
            with suppress(NotFound):  # nothing was projected yet
                points, _ = self.run(
                    self.index.read_points(view, sorted({b.paper_id for b in searchable.values()}), [])
                )
            stored = {point.paper.id: point for point in points}
            for body in searchable.values():
                point = stored.get(body.paper_id)
                if isinstance(body, Publication):
                    # A paper that was retracted before it was published is not shown, so its point may be missing.
                    retracted = self.model.papers[body.paper_id].retracted
                    assert point.paper.revision >= body.revision if point else retracted
                elif point and not point.hidden:
                    assert point.paper.revision > body.revision

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            for ledger in self.ledgers:
                ledger.database.close()
            self.close_index()
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Completes all work, then checks: no event is lost, the index equals the model, retired views can be dropped,
        and a replay changes nothing.
        """
        for partition in range(PARTITIONS):
            while self.next_places(partition, 1):
                self.deliver(0, partition, 7)
        while filling.fill_step(self.database, self.ledgers[0].encoders):
            pass
        self.project_all()
        self.check_statuses()
        for view in self.views():
            if view.projected:
                self.check_view(view)
            elif not view.serving:
                self.drop_from_index(view.name)
        report = self.run(check_profiles(self.database, self.index, 0, 0, repair=False))
        assert report.faults == []
        before = dump(self.database)
        for partition in range(PARTITIONS):
            self.apply(1, [(partition, offset) for offset in range(len(self.log[partition]))])
        assert dump(self.database) == before

    def project_all(self) -> None:
        async def until_done() -> None:
            for _ in range(3):  # fill the view, switch to it, tell the index
                for projector in self.projectors:
                    while await projector.step():
                        pass

        self.run(until_done())

    def check_statuses(self) -> None:
        with self.database.reading() as connection:
            assert serving_view(connection).projected
            for partition, events in enumerate(self.log):
                for offset, event in enumerate(events):
                    outcome = self.model.outcomes[event.event_id]
                    for key in (event.event_id, LogPosition("log", partition, offset)):
                        state = progress.event_state(connection, key)
                        assert (state.outcome, state.searchable) == (outcome, outcome != "DEAD")

    def check_view(self, view: View) -> None:
        encoder, published = self.encoders[view.model.name], self.model.published()
        keys = [span_key(citing, cited, ContextText(text).key) for citing, cited, text in product(NAMES, CITES, TEXTS)]
        stored_papers, stored_spans = self.run(self.index.read_points(view.name, [*NAMES, "stub"], keys))
        papers, spans = shown_papers(stored_papers), shown_spans(stored_spans)
        assert papers.keys() == {key for key in published if not self.model.papers[key].retracted}
        for key, point in papers.items():
            profile = self.model.profile(encoder, key, view.weights.alpha, view.weights.beta)
            np.testing.assert_allclose(normalised(point.profile), normalised(profile), atol=1e-5)
            content = encoder.vector(encoder.paper_text(published[key].title, published[key].abstract))
            np.testing.assert_allclose(normalised(point.content), normalised(content), atol=1e-6)
            check_words(self.model, point, view)
            told = published[key]
            assert (point.paper.in_degree, point.paper.revision) == (self.model.in_degree(key), told.revision)
            assert (point.paper.title, point.paper.abstract) == (told.title, told.abstract)
            assert (point.paper.published, point.paper.external_ids) == (told.published, told.external_ids)
        citations = self.model.citations()
        assert spans.keys() == {(*pair, text) for pair, texts in citations.items() for text in texts}
        for (citing, _, text), span in spans.items():
            assert (span.published, span.revision) == (published[citing].published, published[citing].revision)
            np.testing.assert_allclose(normalised(span.vector), normalised(encoder.vector(text)), atol=1e-6)


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


def copy_ledger(source: Path, target: Path) -> None:
    """Copies a ledger in use with SQLite's backup function, as an operator does."""
    with closing(sqlite3.connect(source)) as from_, closing(sqlite3.connect(target)) as to:
        from_.backup(to)


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
