"""Contract tests: what the index lost is written to it again, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from citewell.profiler.index_views import Holdings
from citewell.profiler.ledger.lifecycle import (
    left_to_do,
    start_rebuild,
)
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.views import View, serving_view
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import Projector
from citewell.runtime.errors import NotFound
from citewell.scholarly.publications import Retraction
from tests.ledger_suite import World, paper


def looked(world: World) -> int:
    """Compares the index with the ledger as a new process does. Returns the number of marked objects afterwards."""
    projector = Projector(world.database, world.ledger.encoders, world.index, lambda: None)
    asyncio.run(projector.index_views.look())
    with world.database.reading() as connection:
        return left_to_do(connection, serving_view(connection))[0]


def left(world: World, view: View) -> int:
    with world.database.reading() as connection:
        return left_to_do(connection, view)[0]


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
