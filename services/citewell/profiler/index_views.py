"""The index's views as the ledger wants them: created, served, filled again after a loss, dropped when outdated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.expected import Expected, note_created, read_expected, refill_view
from citewell.profiler.ledger.lifecycle import forget_view
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.views import View, read_views
from citewell.runtime.errors import FailedPrecondition, NotFound
from citewell.runtime.telemetry import logger, meter

_refills = meter.create_counter("citewell_index_refills", description="Views filled again because the index lost data")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an index says it holds."""

    views: frozenset[str] = frozenset()
    serving: str = ""
    papers: int = 0
    """Points of papers in the served view, hidden ones too. Nothing ever takes one away."""
    spans: int = 0
    """Visible points of spans in the served view."""
    changes: int = 0
    """Grows with every write to the served view."""


class IndexWriter(Protocol):
    """The index, as its writer sees it."""

    async def holdings(self) -> Holdings: ...

    async def create_view(self, view: View) -> None:
        """Makes the view's collections, unless they are there with the same properties."""

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        """Writes points; an older version never replaces a newer one."""

    async def serve_view(self, name: str) -> None:
        """Points the searches that name no view at this one."""

    async def drop_view(self, name: str) -> None: ...

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        """The stored points of these ids and keys."""


class IndexViews:
    """Compares the index with the ledger. Whatever the index lost is marked again, so that the projector fills it in.

    A missing view is noticed by the first write to it, or by the next look. Lost points are looked for at the first
    look, and again whenever the index may have restarted: after a failed call, and when its numbers went down.
    """

    def __init__(
        self, database: Database, index: IndexWriter, changed: Callable[[], None], notice_seconds: float = 0.0
    ) -> None:
        """`changed` is called after objects were marked again; other processes notice that within `notice_seconds`."""
        self._database, self._index, self._changed, self._notice_seconds = database, index, changed, notice_seconds
        self._created: set[str] = set()
        self._served = ""
        self._last = Holdings()
        self._to_compare = True
        self._preparing = asyncio.Lock()

    async def prepare(self, view: View) -> None:
        """Makes sure that the index has the view, and serves it if it is the serving one."""
        async with self._preparing:
            await self._prepare(view)

    async def _prepare(self, view: View) -> None:
        if view.name not in self._created:
            if view.name not in (await self._index.holdings()).views:
                # Marked before it is created: after a crash in between the view is still missing, and marked again.
                await self._refill(view, "the index has no such view")
                self._to_compare = True
            await self._index.create_view(view)
            await asyncio.to_thread(note_created, self._database, view)
            self._created.add(view.name)
        if view.serving and self._served != view.name:
            await self._index.serve_view(view.name)
            self._served = view.name

    def forget(self, name: str) -> None:
        """The index says it has no such view: prepare it again."""
        self._created.discard(name)
        if self._served == name:
            self._served = ""

    def disturbed(self) -> None:
        """A call failed: the index may have restarted with fewer points."""
        self._to_compare = True

    async def look(self) -> None:
        """Compares once."""
        try:
            held = await self._index.holdings()
        except Exception:
            self.disturbed()
            raise
        views = await asyncio.to_thread(self._read_views)
        for view in views:
            if view.can_be_filled and view.name not in held.views:
                self.forget(view.name)
                await self.prepare(view)
        serving = next((view for view in views if view.serving and view.projected), None)
        if serving is not None and serving.name == held.serving:
            fewer = held.papers < self._last.papers or held.changes < self._last.changes
            if self._to_compare or (fewer and self._last.serving == held.serving):
                await self._compare(serving, held)
        self._last = held
        await self._drop_outdated([view for view in views if not (view.serving or view.projected)])

    async def _compare(self, view: View, before: Holdings) -> None:
        expected = await asyncio.to_thread(self._read_expected, view)
        after = await self._index.holdings()
        # Paper points never vanish, so the later count must have them all. Spans do, so their counts compare only when
        # nothing was written meanwhile; else the next look compares again.
        quiet = before.changes == after.changes
        self._to_compare = not quiet
        if after.papers < expected.papers or (quiet and after.spans < expected.spans):
            await self._refill(
                view,
                f"the index holds {after.papers} papers and {after.spans} spans, "
                f"the ledger has written {expected.papers} and {expected.spans}",
            )

    async def _refill(self, view: View, why: str) -> None:
        if not await asyncio.to_thread(refill_view, self._database, view):  # a new view
            return
        self._changed()
        logger.error("the index lost data; it is filled again from the ledger", view=view.name, why=why)
        _refills.add(1)
        # Until every process knows that the view is incomplete, a view created anew would be taken for a complete one.
        await asyncio.sleep(self._notice_seconds)

    async def _drop_outdated(self, views: Sequence[View]) -> None:
        """Drops views of an older epoch, and those whose DropView was interrupted."""
        for view in views:
            with suppress(FailedPrecondition):  # the index serves it still
                with suppress(NotFound):
                    await self._index.drop_view(view.name)
                await asyncio.to_thread(forget_view, self._database, view.name)
                logger.info("dropped an outdated view", view=view.name, epoch=view.epoch)

    def _read_views(self) -> list[View]:
        with self._database.reading() as connection:
            return read_views(connection)

    def _read_expected(self, view: View) -> Expected:
        with self._database.reading() as connection:
            return read_expected(connection, view)
