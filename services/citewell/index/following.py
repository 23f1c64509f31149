"""Keeps a copy in memory up to date: loads all points of a set, then follows the set's change feed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from citewell.index.points import Point
from citewell.index.store import ChangesForgottenError, Points
from citewell.runtime import telemetry

_PAGE = 500
_RETRY_SECONDS = 1.0

_loads = telemetry.meter.create_histogram("citewell_index_load.duration", unit="s", description="Time to load a copy")


class Follower:
    """Passes all points, and later their new versions, to `put`, and then calls `tidy`: one call at a time."""

    def __init__(
        self,
        what: str,
        points: Points,
        parts: tuple[str, ...],
        begin: Callable[[], None],
        put: Callable[[Sequence[Point]], Awaitable[None]],
        tidy: Callable[[], Awaitable[None]],
        feed_seconds: float,
    ) -> None:
        """`begin` empties the copy before it is loaded from the beginning; `tidy` changes no answer."""
        self._what, self._points, self._parts = what, points, parts
        self._begin, self._put, self._tidy = begin, put, tidy
        self._putting = asyncio.Lock()
        self._feed_seconds = feed_seconds
        self._following, self._number, self._followed = asyncio.Lock(), 0, 0.0
        self.loaded = asyncio.Event()
        """Set once the copy is complete."""
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        started, count = time.monotonic(), 0
        while not self.loaded.is_set():
            try:
                # Writes made while the points are read have numbers above this one, and are followed afterwards.
                number, start, count = await self._points.change_number(), None, 0
                async with self._putting:
                    self._begin()  # a restored store may lack points that the copy holds
                while True:
                    page = await self._points.page(start, _PAGE, vectors=self._parts)
                    if page.points:
                        async with self._putting:
                            await self._put(page.points)
                            await self._tidy()
                    count += len(page.points)
                    start = page.next_id
                    if start is None:
                        break
                self._number = number
                self.loaded.set()
            except Exception as error:  # any error: the store goes on answering, and loading is tried again
                telemetry.logger.warning("loading a copy failed", of=self._what, why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        seconds = time.monotonic() - started
        _loads.record(seconds)
        telemetry.logger.info("copy loaded", of=self._what, points=count, seconds=round(seconds, 3))

    async def follow(self) -> None:
        """Applies all writes made until now. If the feed no longer has them, the copy is loaded again."""
        async with self._following:
            more = True
            while more and self.loaded.is_set():  # else the copy is loaded again, including all writes until now
                try:
                    changes = await self._points.changes(self._number)
                except ChangesForgottenError:
                    self.load_again()
                    return
                if not await self._apply(list(changes.ids)):
                    return
                self._number, self._followed, more = changes.number, time.monotonic(), changes.more
                async with self._putting:  # after the number: no search has to wait for this
                    await self._tidy()

    async def _apply(self, ids: list[UUID]) -> bool:
        """Reads and passes on points in batches: many may have been written while the copy was loaded.

        False if the copy began to be loaded again meanwhile.
        """
        for start in range(0, len(ids), _PAGE):
            points = await self._points.read(ids[start : start + _PAGE], self._parts)
            async with self._putting:
                if not self.loaded.is_set():
                    return False
                await self._put(points)
        return True

    async def follow_if_due(self) -> None:
        """Follows the feed unless that was done within the allowed seconds."""
        if time.monotonic() - self._followed < self._feed_seconds:
            return
        try:
            number = await self._points.change_number()
        except ChangesForgottenError:
            self.load_again()
            return
        if number != self._number:
            await self.follow()

    def load_again(self) -> None:
        """Loads the copy again. Call it when the store no longer has the changes."""
        if self.loaded.is_set():
            telemetry.logger.warning("a copy is loaded again: the store no longer has all changes", of=self._what)
            self.loaded.clear()
            self._loading = asyncio.create_task(self._load())

    async def close(self) -> None:
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
