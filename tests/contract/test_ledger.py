"""What the ledger promises, on every database it runs on."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from citewell.profiler import projector
from citewell.profiler.doctor import check_profiles
from citewell.profiler.ledger import filling, progress, schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders, SuppliedVector
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import (
    adopt_restored,
    forget_view,
    left_to_do,
    open_ledger,
    retire_view,
    start_rebuild,
    try_switch,
)
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.rules import Outcome, Position, SourcedEvent
from citewell.profiler.ledger.views import View, read_views, serving_view
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import Projector
from citewell.profiler.reads import get_profile, score_profiles
from citewell.runtime.errors import FailedPrecondition, NotFound, StorageFull
from citewell.scholarly.contexts import CitationMarker, MaskedContext, Passage
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.publications import Event, Publication, Retraction
from tests.ledger_world import HashEncoder, LedgerModel, MemoryIndex, Sums, dump, shown_papers, shown_spans, stored_sums

WEIGHTS = ProfileWeights(0.8, 0.2)


class World:
    """A ledger with its encoder, its index and its projector, and the model beside it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.encoders = {name: HashEncoder(name) for name in ("hash", "other")}
        self.encoder = self.encoders["hash"]
        self.index = MemoryIndex()
        self.model = LedgerModel()
        self.offset = 0
        self.database, self.ledger = self.another_process()
        open_ledger(self.database, self.encoder, WEIGHTS)
        self.projector = Projector(self.database, self.ledger.encoders, self.index, lambda: None)

    def another_process(self) -> tuple[Database, Ledger]:
        database = Database(self.url)
        return database, Ledger(database, Encoders(self.encoders.__getitem__))

    def publish(self, *bodies: Publication | Retraction) -> list[Outcome]:
        """Applies the events as one batch of partition 0, and expects of each what the model says."""
        incoming = []
        for body in bodies:
            event = Event(f"event-{self.offset}", body)
            incoming.append(IncomingEvent(SourcedEvent(event, Position("log", 0, self.offset))))
            self.offset += 1
        results = self.ledger.apply(incoming)
        expected = [self.model.deliver(event.sourced.event) for event in incoming]
        assert [result.outcome.value for result in results] == expected
        return [result.outcome for result in results]

    def project(self) -> None:
        async def all_of_it() -> None:
            while await self.projector.step():
                pass

        asyncio.run(all_of_it())

    def sums(self, encoder: HashEncoder | None = None) -> Sums:
        return stored_sums(self.database, (encoder or self.encoder).model_hash)

    def check(self) -> None:
        """Sums bit for bit, and the index after projection."""
        assert self.sums() == self.model.sums(self.encoder)
        self.project()
        with self.database.reading() as connection:
            view = serving_view(connection)
        papers = shown_papers(self.index.papers[view.name].values())
        shown = {key for key in self.model.published() if not self.model.papers[key].retracted}
        assert papers.keys() == shown
        encoder = self.encoders[view.model.name]
        for key, point in papers.items():
            assert point.paper.in_degree == self.model.in_degree(key)
            expected = self.model.profile(encoder, key, view.weights.alpha, view.weights.beta)
            np.testing.assert_allclose(point.profile, expected, atol=1e-5)
        said = {(citing, cited, text) for (citing, cited), texts in self.model.citations().items() for text in texts}
        assert shown_spans(self.index.spans[view.name].values()).keys() == said


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture
def world(url: str) -> Iterator[World]:
    made = World(url)
    yield made
    made.database.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    yield made
    made.close()


def paper(
    paper_id: str,
    *cites: str,
    revision: int = 1,
    published: str = "2020-06-15",
    says: str = "",
    abstract: str = "",
    also: str = "",
) -> Publication:
    """A paper that cites each of these once, in a context of its own."""
    return Publication(
        paper_id,
        revision,
        f"On {paper_id}",
        abstract=abstract,
        published=PartialDate.parse(published),
        external_ids=tuple(ExternalId(*name.split(":", 1)) for name in also.split()),
        masked_contexts=tuple(MaskedContext(f"{paper_id}{says} builds on TARGETCIT", cited) for cited in cites),
    )


def test_migrations_make_the_schema_and_take_it_away(database: Database) -> None:
    database.migrate()
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
    database.migrate("base")
    with database.reading() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
    database.migrate()


def test_a_newer_schema_is_refused(database: Database) -> None:
    database.migrate()
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(FailedPrecondition, match=r"'9999'.*'0001'"):
        database.migrate()


def test_another_encoder_is_refused_by_name(world: World) -> None:
    with pytest.raises(FailedPrecondition, match=r"'hash'.*hash-6.*'other'.*other-6"):
        open_ledger(world.database, world.encoders["other"], WEIGHTS)


def test_citations_move_the_cited_profile(world: World) -> None:
    assert world.publish(paper("a"), paper("b", "a", "late"), paper("c", "a")) == [Outcome.APPLIED] * 3
    world.check()
    world.publish(paper("late"))  # a stub that had been cited before it came
    world.check()


def test_revisions_win_in_any_arrival_order(world: World) -> None:
    world.publish(paper("a"), paper("b", "a", revision=3, says="at last"))
    assert world.publish(paper("b", "a", "x", revision=2)) == [Outcome.SUPERSEDED]
    assert world.publish(paper("b", "a", revision=3, says="at last")) == [Outcome.DUPLICATE]
    assert world.publish(paper("b", "x", revision=3)) == [Outcome.DEAD]
    world.check()


@pytest.mark.parametrize(
    "changed",
    [
        paper("b", "a", "c", revision=2, abstract="only the abstract"),
        paper("b", "a", "c", revision=2, published="2021-06-15"),
        paper("b", "a", "c", revision=2, published="2020-01-01"),
        paper("b", "a", "c", revision=2, says="in other words"),
        paper("b", "c", "d", revision=2),
        paper("b", revision=2),
        Retraction("b", 2),
    ],
    ids=["abstract", "year", "day", "contexts", "references", "no references", "retraction"],
)
def test_a_revision_replaces_everything_the_paper_said(world: World, changed: Publication | Retraction) -> None:
    world.publish(paper("a"), paper("b", "a", "c"), paper("c", "b"))
    world.check()
    world.publish(changed)
    world.check()


def test_retraction_and_return(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "b"))
    world.publish(Retraction("b", 2, "a mistake"))
    world.check()
    assert get_profile(world.database, "b", UNKNOWN_DATE).in_degree == 1
    world.publish(paper("b", "a", revision=3))
    world.check()


def test_a_retraction_may_come_first(world: World) -> None:
    world.publish(Retraction("b", 5), paper("a"), paper("c", "b"))
    assert world.publish(paper("b", "a", revision=2)) == [Outcome.SUPERSEDED]
    world.check()
    world.publish(paper("b", "a", revision=6))
    world.check()


def test_several_contexts_are_one_contribution_and_a_bare_reference_one_too(world: World) -> None:
    contexts = tuple(MaskedContext(f"{word} of TARGETCIT", "a") for word in ("best", "worst", "best"))
    world.publish(paper("a"), replace(paper("b"), masked_contexts=contexts, reference_ids=("c",)))
    world.check()
    assert get_profile(world.database, "a", UNKNOWN_DATE).in_degree == 1


def test_a_paper_may_cite_itself(world: World) -> None:
    world.publish(paper("a", "a"))
    world.check()
    world.publish(paper("a", "a", revision=2, abstract="more"))
    world.check()


def test_other_ids_mean_the_paper_whichever_comes_first(world: World) -> None:
    world.publish(paper("citing", "doi:10.1/x", "b"))
    world.check()
    world.publish(paper("b", also="doi:10.1/x arxiv:7"))
    world.check()
    assert world.model.in_degree("b") == 1  # two names, one paper, one contribution
    world.publish(paper("second", "arxiv:7"))
    world.check()
    world.publish(paper("b", revision=2, also="arxiv:7"))
    world.check()
    world.publish(paper("doi:10.1/x"))
    world.check()


def test_the_same_events_in_any_batches_end_in_the_same_sums(world: World) -> None:
    events = [
        paper("a"),
        paper("b", "a", "doi:1"),
        paper("c", "a", "b"),
        Retraction("c", 2),
        paper("b", "a", revision=2, also="doi:1"),
        paper("d", "doi:1", "c"),
    ]
    for event in events:
        world.publish(event)
    one_by_one = world.sums()
    at_once = World(f"{world.url}2") if world.database.is_sqlite else None
    if at_once:
        at_once.publish(*reversed(events))
        assert at_once.sums() == one_by_one
        at_once.database.close()
    world.check()


def test_replaying_the_log_changes_nothing(world: World) -> None:
    bodies = [paper("a"), paper("b", "a"), paper("b", "a", revision=2), Retraction("a", 2)]
    world.publish(*bodies)
    world.project()
    before = dump(world.database)
    events = [
        IncomingEvent(SourcedEvent(Event(f"event-{n}", body), Position("log", 0, n))) for n, body in enumerate(bodies)
    ]
    world.ledger.apply(events)
    for event in reversed(events):
        world.ledger.apply([event])
    assert dump(world.database) == before


def test_what_was_dead_stays_without_effect(world: World) -> None:
    world.publish(Retraction("b", 5))
    (dead,) = world.ledger.apply([IncomingEvent(SourcedEvent(Event("conflict", paper("b", "a", revision=5))))])
    world.ledger.record_dead([dead])
    world.publish(Retraction("b", 6))
    (again,) = world.ledger.apply([IncomingEvent(SourcedEvent(Event("conflict", paper("b", "a", revision=5))))])
    assert (dead.outcome, again.outcome) == (Outcome.DEAD, Outcome.SUPERSEDED)
    with pytest.raises(NotFound):
        get_profile(world.database, "b", UNKNOWN_DATE)


def test_texts_are_encoded_once(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.publish(paper("b", "a", revision=2, published="2022"))
    assert set(world.encoder.encoded.values()) == {1}


def test_a_replay_after_a_rebuild_encodes_nothing(world: World) -> None:
    bodies = [paper("a"), paper("b", "a"), paper("b", "a", revision=2, says=" now")]
    world.publish(*bodies)
    start_rebuild(world.database, world.encoders["other"], WEIGHTS)
    while filling.fill_step(world.database, world.ledger.encoders):
        pass
    encoded = world.encoders["other"].encoded.copy()
    world.ledger.apply([IncomingEvent(SourcedEvent(Event("", body))) for body in bodies])
    assert world.encoders["other"].encoded == encoded


def test_supplied_vectors_are_used_when_they_fit(world: World) -> None:
    body, encoder = paper("b", "a"), world.encoder
    context = body.masked_contexts[0].text

    def vector(text: str, model: str = encoder.model_hash, values: bytes = b"") -> SuppliedVector:
        values = values or np.full(encoder.dimension, 0.5, "<f4").tobytes()
        return SuppliedVector(hashlib.sha256(text.encode()).digest(), model, values)

    vectors = (vector(context), vector("not a text of it"), vector("On b | ", model="another"))
    world.ledger.apply([IncomingEvent(SourcedEvent(Event("e", body)), vectors)])
    assert world.encoder.encoded.keys() == {"On b | "}
    assert world.sums()["a", 2020][1] == (2**23,) * encoder.dimension
    for values in (b"\x00" * 4, np.full(encoder.dimension, np.nan, "<f4").tobytes()):
        event = IncomingEvent(SourcedEvent(Event("e2", paper("c", "a"))), (vector("On c | ", values=values),))
        (result,) = world.ledger.apply([event])
        assert (result.outcome, result.reason) == (Outcome.DEAD, "INVALID_VECTORS")
        assert "vectors[0].values" in result.message


def test_status_follows_the_event(world: World) -> None:
    assert world.ledger.event_state("event-0").outcome is None
    world.publish(paper("a"), paper("b", "a"), paper("a"))
    for key in ("event-1", Position("log", 0, 1), "event-2"):
        assert not world.ledger.event_state(key).searchable
    world.project()
    for key, outcome in (("event-1", "APPLIED"), (Position("log", 0, 1), "APPLIED"), ("event-2", "DUPLICATE")):
        state = world.ledger.event_state(key)
        assert (state.outcome, state.searchable) == (outcome, True)


def test_dead_events_let_the_watermark_pass_once_recorded(world: World) -> None:
    world.publish(paper("a"), paper("a", "b"), paper("c"))
    assert world.ledger.applied() == [Position("log", 0, 1)]
    (dead,) = world.ledger.apply(
        [IncomingEvent(SourcedEvent(Event("event-1", paper("a", "b")), Position("log", 0, 1)))]
    )
    world.ledger.record_dead([dead])
    assert world.ledger.applied() == [Position("log", 0, 3)]
    state = world.ledger.event_state("event-1")
    assert (state.outcome, state.reason, state.searchable) == (Outcome.DEAD, "REVISION_CONFLICT", False)
    with world.database.reading() as connection:
        assert progress.searchable(connection) == [Position("log", 0, 0)]
    world.project()
    with world.database.reading() as connection:
        assert progress.searchable(connection) == [Position("log", 0, 3)]


def test_what_can_never_be_applied_is_dead_and_harms_no_other(world: World) -> None:
    markers = (CitationMarker(5, 3, ("a",)), CitationMarker(6, 3, ("a",)))
    bad: list[Publication | Retraction] = [
        paper("", "a"),
        paper("b", "a", revision=0),
        replace(paper("b"), title=""),
        replace(paper("b"), passages=(Passage("short [1]", markers),)),
        replace(paper("b"), masked_contexts=(MaskedContext("no marker", "a"),)),
        replace(paper("b"), reference_ids=("x" * 300,)),
        Retraction("b", -1),
        paper("b\0"),
        paper("b", "a\0"),
        paper("b", also="doi:\0"),
    ]
    assert world.publish(*bad, paper("a"), paper("b", "a")) == [Outcome.DEAD] * len(bad) + [Outcome.APPLIED] * 2
    (dead,) = world.ledger.apply([IncomingEvent(SourcedEvent(Event("\0", paper("")), Position("log", 1, 0)))])
    world.ledger.record_dead([replace(dead, message="a \0 in it")])
    assert world.ledger.event_state(Position("log", 1, 0)).outcome is Outcome.DEAD
    world.check()


def test_as_of_counts_earlier_citing_papers_only(world: World) -> None:
    world.publish(
        paper("a"),
        paper("old", "a", published="2018"),
        paper("spring", "a", published="2020-03-10"),
        paper("autumn", "a", published="2020-10"),
        paper("some time", "a", published="2020"),
        paper("undated", "a", published=""),
    )
    degrees = {"2018-06": 0, "2019": 1, "2020-03-10": 1, "2020-03-11": 2, "2020-10-31": 2, "2020-11": 3, "2021": 4}
    for date, degree in degrees.items():
        assert get_profile(world.database, "a", PartialDate.parse(date)).in_degree == degree, date
    assert get_profile(world.database, "a", UNKNOWN_DATE).in_degree == 5
    query = world.encoder.vector("a question")
    early = LedgerModel()
    for body in (paper("a"), paper("old", "a", published="2018"), paper("spring", "a", published="2020-03-10")):
        early.deliver(Event("", body))
    expected = early.profile(world.encoder, "a", WEIGHTS.alpha, WEIGHTS.beta)
    scores, unknown = score_profiles(world.database, ["nobody", "a", "a"], query, PartialDate(2020, 4))
    assert ([one.paper_id for one in scores], unknown) == (["a"], ["nobody"])
    cosine = query @ expected / np.linalg.norm(query) / np.linalg.norm(expected)
    assert scores[0].score == pytest.approx(cosine, abs=1e-6)
    assert scores[0].in_degree == 2


def test_other_weights_re_encode_nothing(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    encoded = sum(world.encoder.encoded.values())
    view = start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9), "request")
    assert start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9), "request") == view
    assert try_switch(world.database, view.name) is None
    world.publish(paper("c", "a", "b"))
    world.project()
    switched = try_switch(world.database, view.name)
    assert switched is not None
    world.check()
    assert sum(world.encoder.encoded.values()) == encoded + 2  # the new paper's own
    retire_view(world.database, switched[1])
    forget_view(world.database, switched[1])
    world.check()


def test_the_settings_weights_take_over_as_often_as_they_change(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    for weights in (ProfileWeights(0.1, 0.9), WEIGHTS, ProfileWeights(0.1, 0.9)):
        open_ledger(world.database, world.encoder, weights)
        world.project()
        asyncio.run(world.projector.step())  # the turn in which a complete view takes over
        with world.database.reading() as connection:
            assert serving_view(connection).weights == weights
        world.check()


def test_another_encoder_is_filled_while_events_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "PAPERS_ENCODED", 2)
    monkeypatch.setattr(filling, "PAPERS_SUMMED", 2)
    other = world.encoders["other"]
    for number in range(5):
        world.publish(paper(f"p{number}", *(f"p{n}" for n in range(number))))
    start_rebuild(world.database, other, ProfileWeights(0.1, 0.1))
    view = start_rebuild(world.database, other, WEIGHTS)  # a second view of the same new model
    steps = 0
    while filling.fill_step(world.database, world.ledger.encoders):
        steps += 1
        world.publish(paper(f"new{steps}", "p0", "zz", f"new{steps - 1}"))
        world.publish(paper("p4", "p0", "p1", revision=steps + 1, says=f"in year {steps}"))
        assert steps < 50
    assert steps > 6
    assert world.sums(other) == world.model.sums(other)
    world.publish(Retraction("p3", 9))
    assert world.sums(other) == world.model.sums(other)
    world.project()
    assert try_switch(world.database, view.name) is not None
    world.check()


def test_a_restored_ledger_fills_a_new_view(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.project()
    with world.database.reading() as connection:
        before = serving_view(connection)
    epoch = adopt_restored(world.database, "request")
    assert adopt_restored(world.database, "request") == epoch != before.epoch
    world.project()
    with world.database.reading() as connection:
        after = serving_view(connection)
    assert (after.epoch, before.name in world.index.views) == (epoch, True)
    world.check()
    with pytest.raises(FailedPrecondition, match="older epoch"):
        try_switch(world.database, before.name)


def test_what_takes_over_after_a_restore_cannot_be_retired(world: World) -> None:
    world.publish(paper("a"))
    adopt_restored(world.database)
    with world.database.reading() as connection:
        (adopting,) = (view.name for view in read_views(connection) if view.projected)
    other = start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9))  # waits to be switched to
    with pytest.raises(FailedPrecondition, match="only one to take over"):
        retire_view(world.database, adopting)
    retire_view(world.database, other.name)
    world.check()
    with world.database.reading() as connection:
        assert serving_view(connection).name == adopting


def test_the_doctor_finds_and_repairs(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a"))
    world.check()
    with world.database.writing() as connection:
        connection.execute(sa.update(schema.year_sums).values(count=7))
        view = serving_view(connection).name
    del world.index.papers[view]["b"]
    world.index.papers[view]["c"] = replace(world.index.papers[view]["c"], profile=np.ones(6, np.float32))
    report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
    kinds = {(fault.paper_id, fault.kind) for fault in report.faults}
    assert {("a", "COUNT_MISMATCH"), ("b", "INDEX_MISSING"), ("c", "PROFILE_DIFFERS")} <= kinds
    world.check()
    clean = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False))
    assert (clean.checked, clean.faults) == (3, [])
    assert asyncio.run(check_profiles(world.database, world.index, 2, 1, repair=False)).checked == 2


def test_the_doctor_asks_for_no_span_that_was_gone_before_its_model_came(world: World) -> None:
    said = (MaskedContext("as in TARGETCIT", "x"),)
    world.publish(replace(paper("a"), masked_contexts=said), paper("a", revision=2))
    view = start_rebuild(world.database, world.encoders["other"], WEIGHTS)
    while filling.fill_step(world.database, world.ledger.encoders):
        pass
    world.project()
    assert try_switch(world.database, view.name) is not None
    world.publish(replace(paper("b"), masked_contexts=said))  # only now the text has a vector of the new model
    world.project()
    assert asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False)).faults == []


def test_processes_apply_at_once_without_deadlock_or_lost_update(world: World) -> None:
    """Four processes feed revisions of papers that cite each other, some under other ids."""
    ids = [f"p{number}" for number in range(6)]
    barrier = threading.Barrier(4)
    processes = [world.another_process() for _ in range(4)]

    def feed(worker: int) -> None:
        rng = np.random.default_rng(worker)
        barrier.wait(30)
        for round_ in range(12):
            own, *cited = rng.permutation(ids)[:4]
            also = f"doi:{own}" if rng.random() < 0.3 else ""
            body = paper(own, *cited, f"doi:{cited[0]}", revision=4 * round_ + worker + 1, says=f"{round_}", also=also)
            events = [body, paper(f"{worker}-{round_}", *cited)]
            processes[worker][1].apply([IncomingEvent(SourcedEvent(Event("", body))) for body in events])
            bodies.extend(events)

    bodies: list[Publication] = []
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(feed, worker) for worker in range(4)]:
            done.result(120)
    for database, _ in processes:
        database.close()
    for body in bodies:
        world.model.deliver(Event("", body))
    world.check()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/ledger.sqlite")
    world.publish(paper("a"))
    with world.database.writing() as connection:  # the pool has this one connection
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    bodies = [paper(f"p{number}", "a", abstract="long " * 2000) for number in range(20)]
    events = [
        IncomingEvent(SourcedEvent(Event(f"p{n}", body), Position("log", 0, n + 1))) for n, body in enumerate(bodies)
    ]
    before = dump(world.database)
    with pytest.raises(StorageFull, match="disk is full"):
        world.ledger.apply(events)
    assert dump(world.database) == before
    with world.database.writing() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    world.publish(*bodies)
    world.check()
    world.database.close()


def test_papers_do_not_wait_behind_ever_newer_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "BATCH", 4)
    world.publish(paper("m"))
    asyncio.run(world.projector.step())
    world.publish(paper("a"))
    for number in range(3):  # what comes sorts behind what was projected last
        world.publish(*(paper(f"n{number}-{each}") for each in range(3)))
        asyncio.run(world.projector.step())
    assert world.ledger.event_state("event-1").searchable


def test_one_batch_is_read_while_another_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "BATCH", 2)
    world.publish(*map(paper, "abcd"))
    upsert, written = world.index.upsert, list[set[str]]()

    async def two_steps() -> None:
        begun, let_go = asyncio.Event(), asyncio.Event()

        async def held(view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
            written.append({point.paper.id for point in papers})
            if len(written) == 1:
                begun.set()
                await let_go.wait()
            await upsert(view, papers, spans)

        monkeypatch.setattr(world.index, "upsert", held)
        first = asyncio.create_task(world.projector.step())
        await begun.wait()
        world.publish(paper("a", revision=2))
        assert await world.projector.step() == 2
        assert await world.projector.step() == 0  # what is in hand is not taken again
        let_go.set()
        await first

    asyncio.run(two_steps())
    world.check()
    assert written == [{"a", "b"}, {"c", "d"}, {"a"}]


def test_single_events_go_before_a_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "BATCH", 256)
    world.ledger.apply([IncomingEvent(SourcedEvent(Event("", paper(f"a{number:04}")))) for number in range(600)])
    world.publish(paper("z"))
    asyncio.run(world.projector.step())
    assert world.ledger.event_state("event-0").searchable
    with world.database.reading() as connection:
        assert left_to_do(connection, serving_view(connection)) == (600 + 1 - 256, 0)


def test_unreadable_databases_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "ledger.sqlite"
    broken.write_bytes(b"this is no database, though it is long enough to look like one" * 20)
    with pytest.raises(FailedPrecondition, match="no ledger"):
        Database(f"sqlite:///{broken}").migrate()
    with pytest.raises(FailedPrecondition, match="ledger_url"):
        Database("what://ever")
