"""Keeps the index's views in line with the ledger: creates, serves and drops them, and refills them after data loss."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
    """What the index reports about its content."""

    views: Mapping[str, int] = field(default_factory=dict)
    """The paper points in each view, including hidden ones."""
    serving: str = ""
    papers: int = 0
    """Paper points in the served view, including hidden ones. Paper points are never deleted."""
    spans: int = 0
    """Visible span points in the served view."""
    changes: int = 0
    """A counter that grows with every write to the served view."""


class IndexWriter(Protocol):
    """The index operations that the projector needs."""

    async def holdings(self) -> Holdings: ...

    async def create_view(self, view: View) -> bool:
        """Creates the view's collections. False if they existed with the same properties."""

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        """Writes points. An older version never replaces a newer one."""

    async def serve_view(self, name: str) -> None:
        """Makes this the view of searches that name none."""

    async def drop_view(self, name: str) -> None: ...

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        """The stored points of these ids and keys."""


class IndexViews:
    """Compares the index with the ledger. Marks a view again if the index lost data, so that the projector fills it.

    A missing view is noticed by the first write to it or by the next `look`. Points are counted at the first `look`,
    and again whenever the index may have restarted: after a failed call, or when its counts went down.
    """

    def __init__(
        self, database: Database, index: IndexWriter, changed: Callable[[], None], notice_seconds: float = 0.0
    ) -> None:
        """`changed` is called after objects were marked again. Other processes notice this within `notice_seconds`."""
        self._database, self._index, self._changed, self._notice_seconds = database, index, changed, notice_seconds
        self._created: set[str] = set()
        self._served = ""
        self._last = Holdings()
        self._to_compare = True
        self._preparing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        _refills.add(0)  # a rate needs a value from before the first increase

    async def prepare(self, view: View) -> None:
        """Creates the view in the index if it is missing. Serves it if the ledger's serving view is this one."""
        async with self._preparing[view.name]:  # a view that cannot be created does not delay the others
            await self._prepare(view)

    async def _prepare(self, view: View) -> None:
        if view.name not in self._created:
            known = view.name in (await self._index.holdings()).views
            if not known:
                # Mark first, create second: after a crash in between, the view is still missing and is marked again.
                await self._refill(view, "the index has no such view")
                self._to_compare = True
            if await self._index.create_view(view) and known:
                # It was lost between the two calls, or the first was answered by a process that did not know yet.
                await self._refill(view, "the index had lost the view")
                self._to_compare = True
            await asyncio.to_thread(note_created, self._database, view)
            self._created.add(view.name)
        if view.serving and self._served != view.name:
            await self._index.serve_view(view.name)
            self._served = view.name

    def forget(self, name: str) -> None:
        """Call this when the index answers that the view does not exist. `prepare` creates it again."""
        self._created.discard(name)
        if self._served == name:
            self._served = ""

    def disturbed(self) -> None:
        """Call this when a call to the index failed: it may have restarted with fewer points. `look` counts them."""
        self._to_compare = True

    async def look(self) -> None:
        """Compares the index with the ledger once."""
        try:
            held = await self._index.holdings()
        except Exception:
            self.disturbed()
            raise
        views = await asyncio.to_thread(self._read_views)
        serving = next((view for view in views if view.serving and view.projected), None)
        failures: list[Exception] = []
        for view in views:
            missing = view.can_be_filled and view.name not in held.views
            if missing or (view is serving and view.name != held.serving):
                self.forget(view.name)
                try:
                    await self.prepare(view)
                except Exception as error:  # the other views do not wait for this one
                    failures.append(error)
        if failures:
            raise failures[0]
        if serving is not None and serving.name == held.serving:
            fewer = held.papers < self._last.papers or held.changes < self._last.changes
            if self._to_compare or (fewer and self._last.serving == held.serving):
                await self._compare(serving, held)
        self._last = held
        await self._drop_outdated([view for view in views if not (view.serving or view.projected)])

    async def is_held(self, view: View) -> bool:
        """Whether the index has all papers that it acknowledged for this view; if not, the view is filled again.

        Call this before the view is served. Only the served view is compared with the ledger all the time.
        """
        expected = await asyncio.to_thread(self._read_expected, view)
        held = (await self._index.holdings()).views.get(view.name, 0)  # a view that is only marked is not there yet
        if held >= expected.papers:
            return True
        self.forget(view.name)
        await self._refill(view, f"the index holds {held} papers, the ledger has written {expected.papers}")
        return False

    async def _compare(self, view: View, before: Holdings) -> None:
        expected = await asyncio.to_thread(self._read_expected, view)
        after = await self._index.holdings()
        # Paper points are never deleted, so a later count must include all expected ones. Spans can be hidden, so their
        # counts are comparable only if nothing was written between the two counts; else the next look compares again.
        quiet = before.changes == after.changes
        self._to_compare = not quiet
        if after.papers < expected.papers or (quiet and after.spans < expected.spans):
            await self._refill(
                view,
                f"the index holds {after.papers} papers and {after.spans} spans, "
                f"the ledger has written {expected.papers} and {expected.spans}",
            )

    async def _refill(self, view: View, why: str) -> None:
        if not await asyncio.to_thread(refill_view, self._database, view):  # the index never had this view
            return
        self._changed()
        logger.error("the index lost data; it is filled again from the ledger", view=view.name, why=why)
        _refills.add(1)
        # Wait until every process has seen that the view is incomplete. Otherwise one could serve the empty view as if
        # it were complete.
        await asyncio.sleep(self._notice_seconds)

    async def _drop_outdated(self, views: Sequence[View]) -> None:
        """Drops views of an older epoch, and views whose DropView was interrupted."""
        for view in views:
            with suppress(FailedPrecondition):  # the index still serves this view
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
