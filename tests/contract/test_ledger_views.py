"""Contract tests: filling, switching, dropping and restoring views, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from citewell.profiler.ledger import filling
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import IncomingEvent
from citewell.profiler.ledger.lifecycle import (
    adopt_restored,
    forget_view,
    open_ledger,
    retire_view,
    start_rebuild,
    try_switch,
)
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import View, read_views, serving_view
from citewell.profiler.profiles import ProfileWeights
from citewell.runtime.errors import FailedPrecondition
from citewell.scholarly.publications import Event, Retraction
from tests.ledger_suite import WEIGHTS, World, paper
from tests.ledger_world import HashEncoder, shown_papers


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
