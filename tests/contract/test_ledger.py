"""Contract tests: how the ledger applies events, on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from numpy.typing import NDArray

from citewell.profiler.ledger import ledger, progress, schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import SuppliedVector
from citewell.profiler.ledger.ledger import IncomingEvent
from citewell.profiler.ledger.lifecycle import open_ledger, start_rebuild
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import read_views
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.reads import get_profile, list_references, score_profiles
from citewell.runtime import deadlines
from citewell.runtime.errors import DeadlineExceeded, FailedPrecondition, NotFound, StorageFull
from citewell.scholarly.contexts import CitationMarker, MaskedContext, Passage
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event, Publication, Retraction
from tests.ledger_suite import WEIGHTS, World, paper
from tests.ledger_world import EVERY_YEAR, LedgerModel, dump


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
    with pytest.raises(FailedPrecondition, match=r"'9999'.*'0003'"):
        database.migrate()


def test_another_encoder_is_refused_by_name(world: World) -> None:
    with pytest.raises(FailedPrecondition, match=r"'hash'.*hash-6.*'other'.*other-6"):
        open_ledger(world.database, world.encoders["other"], WEIGHTS)


def test_a_ledger_written_under_a_former_hash_goes_on_without_a_rebuild(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    world.encoder.former_hashes = frozenset([world.encoder.model_hash])
    world.encoder.model_hash = "new"
    database, ledger = world.another_process()
    assert open_ledger(database, world.encoder, WEIGHTS).model.hash == "hash-6"
    encoded = world.encoder.encoded.copy()
    start_rebuild(database, world.encoder, ProfileWeights(0.1, 0.9))
    vectors = tuple(
        SuppliedVector(hashlib.sha256(text.encode()).digest(), name, np.full(6, 0.5, np.float32).tobytes())
        for text, name in (("On c | ", "new"), ("On d | ", "hash-6"))
    )
    for name in "cd":
        ledger.apply([IncomingEvent(SourcedEvent(Event(name, paper(name))), vectors)])
        assert get_profile(database, name, UNKNOWN_DATE).content.tolist() == [0.5] * 6
    assert world.encoder.encoded == encoded
    with database.reading() as connection:
        assert {view.model.hash for view in read_views(connection)} == {"hash-6"}
    database.close()


def test_a_call_that_runs_out_of_time_stops_and_goes_on_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "TEXTS_AT_ONCE", 2)
    encode = world.encoder.encode

    def slow(texts: Sequence[str]) -> NDArray[np.float32]:
        if world.encoder.encoded:  # the second piece uses up the deadline
            time.sleep(max(0.0, deadlines.remaining()))
        return encode(texts)

    monkeypatch.setattr(world.encoder, "encode", slow)
    incoming = [IncomingEvent(SourcedEvent(Event(name, paper(name)))) for name in "abcdef"]
    with deadlines.within(2.0), pytest.raises(DeadlineExceeded):
        world.ledger.apply(incoming)
    assert len(world.encoder.encoded) == 4
    monkeypatch.setattr(world.encoder, "encode", encode)
    assert {result.outcome for result in world.ledger.apply(incoming)} == {Outcome.APPLIED}
    assert len(world.encoder.encoded) == sum(world.encoder.encoded.values()) == 6


def test_citations_move_the_cited_profile(world: World) -> None:
    assert world.publish(paper("a"), paper("b", "a", "late"), paper("c", "a")) == [Outcome.APPLIED] * 3
    world.check()
    world.publish(paper("late"))  # "late" was cited before it was published, so it was a stub
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


def test_a_paper_cited_in_several_years_has_a_total(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a"))
    world.check()
    assert world.sums().keys() == {("a", 2020)}
    world.publish(paper("d", "a", published="2021"))
    world.check()
    assert world.sums().keys() == {("a", 2020), ("a", 2021), ("a", EVERY_YEAR)}
    assert world.sums()["a", EVERY_YEAR][0] == 3
    world.publish(paper("b", "a", revision=2, published=""))  # another year
    world.check()
    world.publish(
        Retraction("c", 2), Retraction("d", 2), paper("e", "a", published="2022")
    )  # years come and go at once
    world.check()
    world.publish(Retraction("e", 2))
    world.check()
    assert world.sums().keys() == {("a", 0)}
    world.publish(Retraction("b", 3))
    world.check()
    assert world.sums() == {}
    world.publish(paper("f", "a"), paper("g", "a", published="2021"))  # its first citations are of two years
    world.check()


def test_an_older_ledger_gets_totals(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a", "b", published="2021"), paper("d", "a", published=""))
    right = world.sums()
    world.database.migrate("0002")
    assert world.sums() == {group: sums for group, sums in right.items() if group[1] != EVERY_YEAR}
    world.database.migrate()
    assert world.sums() == right
    world.check()


def test_replaying_the_log_changes_nothing(world: World) -> None:
    bodies = [paper("a"), paper("b", "a"), paper("b", "a", revision=2), Retraction("a", 2)]
    world.publish(*bodies)
    world.project()
    before = dump(world.database)
    events = [
        IncomingEvent(SourcedEvent(Event(f"event-{n}", body), LogPosition("log", 0, n)))
        for n, body in enumerate(bodies)
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
    for key in ("event-1", LogPosition("log", 0, 1), "event-2"):
        assert not world.ledger.event_state(key).searchable
    world.project()
    for key, outcome in (("event-1", "APPLIED"), (LogPosition("log", 0, 1), "APPLIED"), ("event-2", "DUPLICATE")):
        state = world.ledger.event_state(key)
        assert (state.outcome, state.searchable) == (outcome, True)


def test_dead_events_let_the_watermark_pass_once_recorded(world: World) -> None:
    world.publish(paper("a"), paper("a", "b"), paper("c"))
    assert world.ledger.applied() == [LogPosition("log", 0, 1)]
    (dead,) = world.ledger.apply(
        [IncomingEvent(SourcedEvent(Event("event-1", paper("a", "b")), LogPosition("log", 0, 1)))]
    )
    world.ledger.record_dead([dead])
    assert world.ledger.applied() == [LogPosition("log", 0, 3)]
    state = world.ledger.event_state("event-1")
    assert (state.outcome, state.reason, state.searchable) == (Outcome.DEAD, "REVISION_CONFLICT", False)
    with world.database.reading() as connection:
        assert progress.searchable(connection) == [LogPosition("log", 0, 0)]
    world.project()
    with world.database.reading() as connection:
        assert progress.searchable(connection) == [LogPosition("log", 0, 3)]


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
    (dead,) = world.ledger.apply([IncomingEvent(SourcedEvent(Event("\0", paper("")), LogPosition("log", 1, 0)))])
    world.ledger.record_dead([replace(dead, message="a \0 in it")])
    assert world.ledger.event_state(LogPosition("log", 1, 0)).outcome is Outcome.DEAD
    world.check()


def test_an_id_that_no_paper_can_have_is_unknown(world: World) -> None:
    world.publish(paper("a"))
    with pytest.raises(NotFound):
        get_profile(world.database, "a\0", UNKNOWN_DATE)
    assert list_references(world.database, ["a\0", "a"], UNKNOWN_DATE) == {"a": []}
    query = world.encoder.vector("a question")
    assert score_profiles(world.database, ["a\0"], query, UNKNOWN_DATE) == ([], ["a\0"])


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


def test_processes_apply_at_once_without_deadlock_or_lost_update(world: World) -> None:
    """Four processes apply revisions of papers that cite each other, some by external ids."""
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
    with world.database.writing() as connection:  # the limit is per connection, and the pool has only this one
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    bodies = [paper(f"p{number}", "a", abstract="long " * 2000) for number in range(20)]
    events = [
        IncomingEvent(SourcedEvent(Event(f"p{n}", body), LogPosition("log", 0, n + 1))) for n, body in enumerate(bodies)
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


def test_unreadable_databases_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "ledger.sqlite"
    broken.write_bytes(b"this is no database, though it is long enough to look like one" * 20)
    with pytest.raises(FailedPrecondition, match="no ledger"):
        Database(f"sqlite:///{broken}").migrate()
    with pytest.raises(FailedPrecondition, match="ledger_url"):
        Database("what://ever")
