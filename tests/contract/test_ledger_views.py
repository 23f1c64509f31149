"""Contract tests: filling, switching, projecting, restoring and repairing views, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from citewell.profiler import projector
from citewell.profiler.doctor import check_profiles
from citewell.profiler.index_views import Holdings
from citewell.profiler.ledger import filling, schema
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import IncomingEvent
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
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import View, read_views, serving_view
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import Projector
from citewell.runtime.errors import FailedPrecondition, NotFound
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.publications import Event, Retraction
from tests.ledger_suite import WEIGHTS, World, paper
from tests.ledger_world import EVERY_YEAR, HashEncoder, shown_papers


def test_a_replay_after_a_rebuild_encodes_nothing(world: World) -> None:
    bodies = [paper("a"), paper("b", "a"), paper("b", "a", revision=2, says=" now")]
    world.publish(*bodies)
    start_rebuild(world.database, world.encoders["other"], WEIGHTS)
    while filling.fill_step(world.database, world.ledger.encoders):
        pass
    encoded = world.encoders["other"].encoded.copy()
    world.ledger.apply([IncomingEvent(SourcedEvent(Event("", body))) for body in bodies])
    assert world.encoders["other"].encoded == encoded


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
    assert sum(world.encoder.encoded.values()) == encoded + 2  # the texts of the new paper
    retire_view(world.database, switched[1])
    forget_view(world.database, switched[1])
    world.check()


def test_the_number_of_views_is_limited_and_the_error_names_them(world: World) -> None:
    def rebuild(beta: float) -> View:
        return start_rebuild(world.database, world.encoder, ProfileWeights(0.5, beta), max_views=3)

    first = rebuild(0.1)
    rebuild(0.2)
    with pytest.raises(FailedPrecondition, match=rf"3 views already.*{first.name}.*rebuild drop") as raised:
        rebuild(0.3)
    assert raised.value.reason == "TOO_MANY_VIEWS"
    retire_view(world.database, first.name)
    forget_view(world.database, first.name)
    forget_view(world.database, first.name)  # two processes may drop the same view
    rebuild(0.3)


def test_the_settings_weights_take_over_as_often_as_they_change(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    for weights in (ProfileWeights(0.1, 0.9), WEIGHTS, ProfileWeights(0.1, 0.9)):
        open_ledger(world.database, world.encoder, weights)
        world.project()
        asyncio.run(world.projector.step())  # this step switches to the complete view
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


def test_events_do_not_wait_for_the_missing_encoder_of_a_view_that_is_not_served(world: World) -> None:
    other = world.encoders["other"]
    world.publish(paper("a"), paper("b", "a", "zz"))
    view = start_rebuild(world.database, other, WEIGHTS)

    def fill() -> None:
        while filling.fill_step(world.database, world.ledger.encoders):
            pass

    def load(name: str) -> HashEncoder:
        if name == "other":
            raise FailedPrecondition("its folder is gone", reason="ENCODER_UNUSABLE")
        return world.encoders[name]

    for complete in (False, True):
        if complete:
            fill()
            world.project()
        there, world.ledger.encoders = world.ledger.encoders, Encoders(load)
        world.publish(paper(f"c{complete}", "a"), paper("b", "a", revision=2 + complete))  # drops "zz"
        world.check()
        with pytest.raises(FailedPrecondition, match="folder is gone"):
            fill()
        assert try_switch(world.database, view.name) is None
        world.ledger.encoders = there
    fill()
    assert world.sums(other) == world.model.sums(other)
    world.project()
    assert try_switch(world.database, view.name) is not None
    world.check()


@pytest.mark.parametrize("state", ["ENCODING", "SUMMING", "READY"])
def test_a_view_can_be_dropped_in_every_state(world: World, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "PAPERS_SUMMED", 1)
    other = world.encoders["other"]
    world.publish(paper("a"), paper("b", "a"), paper("c", "a", "b"))
    view = start_rebuild(world.database, other, WEIGHTS)

    def read() -> View | None:
        with world.database.reading() as connection:
            return next((each for each in read_views(connection) if each.name == view.name), None)

    while (there := read()) and there.model.state != state:
        filling.fill_step(world.database, world.ledger.encoders)
    retire_view(world.database, view.name)
    forget_view(world.database, view.name)
    assert read() is None
    assert world.sums(other) == {}
    world.publish(paper("d", "a"))
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


def test_after_a_restore_nothing_is_searchable_that_the_index_does_not_answer(world: World) -> None:
    world.publish(paper("a"))
    world.project()
    adopt_restored(world.database)
    world.publish(paper("b"))

    def answered(name: str) -> bool:
        """Whether a search in the serving view finds the paper."""
        with world.database.reading() as connection:
            return name in shown_papers(world.index.papers[serving_view(connection).name].values())

    assert not answered("b")
    assert not world.ledger.event_state("event-1").searchable
    world.project()
    asyncio.run(world.projector.step())  # this step tells the index which view is served
    assert answered("b")
    assert world.ledger.event_state("event-1").searchable


def test_what_takes_over_after_a_restore_cannot_be_retired(world: World) -> None:
    world.publish(paper("a"))
    adopt_restored(world.database)
    with world.database.reading() as connection:
        (adopting,) = (view.name for view in read_views(connection) if view.projected)
    other = start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9))  # not served by itself
    with pytest.raises(FailedPrecondition, match="only one to take over"):
        retire_view(world.database, adopting)
    retire_view(world.database, other.name)
    world.check()
    with world.database.reading() as connection:
        assert serving_view(connection).name == adopting


def looked(world: World) -> int:
    """Compares the index with the ledger as a new process does. Returns the number of marked objects afterwards."""
    projector = Projector(world.database, world.ledger.encoders, world.index, lambda: None)
    asyncio.run(projector.index_views.look())
    with world.database.reading() as connection:
        return left_to_do(connection, serving_view(connection))[0]


def test_an_index_that_lost_everything_is_filled_again(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "b"), Retraction("c", 2))
    world.check()
    asyncio.run(world.projector.index_views.look())
    world.index.lose_everything()
    asyncio.run(world.projector.index_views.look())
    assert not world.ledger.event_state("event-1").searchable
    world.check()
    assert world.ledger.event_state("event-1").searchable
    assert world.index.serving


def test_a_lost_alias_is_set_again(world: World) -> None:
    world.publish(paper("a"))
    world.check()
    served, world.index.serving = world.index.serving, ""
    asyncio.run(world.projector.index_views.look())
    assert world.index.serving == served


def test_a_view_that_is_lost_while_it_is_looked_for_is_filled_again(world: World) -> None:
    """As when one index process still lists a view that the server lost, and another creates it."""
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    held = asyncio.run(world.index.holdings())
    world.index.lose_everything()
    projector = Projector(world.database, world.ledger.encoders, world.index, lambda: None)

    async def as_before() -> Holdings:
        return held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.index, "holdings", as_before)
        asyncio.run(projector.step())
    world.check()


def test_a_view_that_lost_papers_is_not_switched_to(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "b"))
    world.check()
    before = world.index.serving
    other = start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9), switch_when_complete=True)
    while left(world, other):  # without the step after it, which switches
        asyncio.run(world.projector.step())
    del world.index.papers[other.name]["a"]
    asyncio.run(world.projector.step())
    assert world.index.serving == before
    assert left(world, other) == 0
    assert world.index.papers[other.name].keys() == {"a", "b", "c"}
    asyncio.run(world.projector.step())
    asyncio.run(world.projector.step())
    assert world.index.serving == other.name


def left(world: World, view: View) -> int:
    with world.database.reading() as connection:
        return left_to_do(connection, view)[0]


def test_a_view_that_cannot_be_created_does_not_hold_up_the_served_one(world: World) -> None:
    world.publish(paper("a"))
    world.check()
    start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9))
    served = world.index.serving
    create, upsert = world.index.create_view, world.index.upsert
    written = asyncio.Event()

    async def hang_for_others(view: View) -> bool:
        if view.name != served:
            await asyncio.Event().wait()
        return await create(view)

    async def upsert_and_tell(view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        await upsert(view, papers, spans)
        written.set()

    async def publish_meanwhile() -> None:
        projecting = asyncio.create_task(world.projector.run(0.05))
        await asyncio.sleep(0)
        for name in ("b", "c"):
            await asyncio.to_thread(world.publish, paper(name))
            async with asyncio.timeout(20):
                while name not in world.index.papers[served]:
                    written.clear()
                    await written.wait()
        projecting.cancel()
        await asyncio.gather(projecting, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.index, "create_view", hang_for_others)
        patch.setattr(world.index, "upsert", upsert_and_tell)
        asyncio.run(publish_meanwhile())


def test_a_write_notices_that_the_view_is_gone(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    world.index.lose_everything()
    world.publish(paper("c", "a"))
    with pytest.raises(NotFound):
        asyncio.run(world.projector.step())
    world.check()


def test_a_view_with_fewer_points_than_were_written_is_filled_again(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "b", "x"), paper("d"))
    world.publish(Retraction("b", 2), paper("c", "a", revision=2), paper("d", revision=2, says="without a reference"))
    world.check()
    assert looked(world) == 0
    papers, spans = world.index.papers[world.index.serving], world.index.spans[world.index.serving]
    del papers["a"]
    assert looked(world) == 6  # four papers, and the spans of the two that cite or once cited another
    world.check()
    assert looked(world) == 0
    del spans[next(key for key, span in spans.items() if not span.hidden)]
    assert looked(world) > 0
    world.check()


def test_fewer_points_are_noticed_while_running(world: World) -> None:
    views = world.projector.index_views
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    asyncio.run(views.look())
    world.publish(paper("c"))
    world.project()
    asyncio.run(views.look())
    del world.index.papers[world.index.serving]["a"]  # as if an older copy of the index was restored
    asyncio.run(views.look())
    world.check()


def test_views_of_an_older_epoch_are_dropped_when_they_are_replaced(world: World) -> None:
    world.publish(paper("a"))
    world.check()
    before = world.index.serving
    other = start_rebuild(world.database, world.encoder, ProfileWeights(0.1, 0.9))
    world.project()
    adopt_restored(world.database)
    asyncio.run(world.projector.index_views.look())
    assert other.name not in world.index.views
    assert before in world.index.views  # the old view is served until the new one is complete
    world.project()
    asyncio.run(world.projector.step())
    asyncio.run(world.projector.index_views.look())
    with world.database.reading() as connection:
        assert [view.name for view in read_views(connection)] == [world.index.serving] == list(world.index.views)


def test_the_doctor_repairs_an_index_that_lost_everything(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    world.index.lose_everything()
    report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
    assert {fault.kind for fault in report.faults} == {"INDEX_MISSING"}
    assert report.repaired == 2
    with pytest.raises(NotFound):
        world.project()
    world.check()


def test_the_doctor_repairs_totals(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a", published="2021"), paper("d", "b"))
    world.check()
    table = schema.year_sums
    for damage in (
        sa.delete(table).where(table.c.year == EVERY_YEAR),  # a profiler of an older version applied an event
        sa.update(table).where(table.c.year == EVERY_YEAR).values(contents=bytes(8 * world.encoder.dimension)),
        sa.update(table).where(table.c.cited == "b").values(year=EVERY_YEAR),
    ):
        with world.database.writing() as connection:
            connection.execute(damage)
        report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
        assert any("all years" in fault.detail for fault in report.faults)
        world.check()


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


@pytest.mark.parametrize("sample", [0, 4])
def test_the_doctor_checks_page_by_page(world: World, sample: int) -> None:
    world.publish(*map(paper, "abcde"))
    world.check()
    whole = asyncio.run(check_profiles(world.database, world.index, sample, 7, repair=False))
    world.index.papers[world.index.serving].clear()
    last, checked, faulty = "", 0, list[str]()
    for _ in range(3):
        page = asyncio.run(check_profiles(world.database, world.index, sample, 7, False, last, page_size=2))
        assert page.total == whole.total == (sample or 5)
        checked, last = checked + page.checked, page.last
        faulty += [fault.paper_id for fault in page.faults]
        if not last:
            break
    assert not last
    assert checked == len(set(faulty)) == len(faulty) == whole.checked


def test_the_doctor_asks_for_no_span_that_was_gone_before_its_model_came(world: World) -> None:
    said = (MaskedContext("as in TARGETCIT", "x"),)
    world.publish(replace(paper("a"), masked_contexts=said), paper("a", revision=2))
    view = start_rebuild(world.database, world.encoders["other"], WEIGHTS)
    while filling.fill_step(world.database, world.ledger.encoders):
        pass
    world.project()
    assert try_switch(world.database, view.name) is not None
    world.publish(replace(paper("b"), masked_contexts=said))  # only this encodes the text with the new model
    world.project()
    assert asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False)).faults == []


def test_papers_do_not_wait_behind_ever_newer_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "BATCH", 4)
    world.publish(paper("m"))
    asyncio.run(world.projector.step())
    world.publish(paper("a"))
    for number in range(3):  # the new ids sort after those projected last
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
        assert await world.projector.step() == 0  # objects that another step is projecting are left out
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
