"""Contract tests: the order in which marks are projected to the index, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from citewell.profiler import projector
from citewell.profiler.ledger.ledger import IncomingEvent
from citewell.profiler.ledger.lifecycle import (
    left_to_do,
)
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import View, serving_view
from citewell.scholarly.publications import Event
from tests.ledger_suite import World, paper


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
