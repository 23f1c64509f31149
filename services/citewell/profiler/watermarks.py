"""How far the serving view is, kept in memory so that a query costs no database read; and who waits for an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.engine import Connection

from citewell.profiler.ledger import progress
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.statistics import NO_STATISTICS, Statistics, read_statistics, read_version
from citewell.profiler.ledger.views import View, is_complete, serving_view
from citewell.runtime.errors import Unavailable
from citewell.runtime.telemetry import logger
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition

Answer = TypeVar("Answer")

# What changes within so many seconds is looked at once.
SETTLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Seen:
    """The ledger as of one moment."""

    view: View
    complete: bool
    searchable: list[LogPosition]
    states: dict[str | LogPosition, EventState]
    statistics: Statistics


class Watermarks:
    """The serving view and its searchable positions; what they say was true at the last look, and stays true."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wake = asyncio.Event()
        self._next_look = asyncio.Event()
        self._waiting: dict[str | LogPosition, set[asyncio.Future[EventState]]] = {}
        self._view: View | None = None
        self.complete = True
        """Whether the serving view holds all that it should; see `is_complete`."""
        self.searchable: list[LogPosition] = []
        self.statistics = NO_STATISTICS
        """What the words of queries are weighed by."""

    @property
    def view(self) -> View:
        """The serving view; Unavailable before the ledger is open."""
        if self._view is None:
            raise Unavailable("the profiler is starting", stage="profiler")
        return self._view

    async def look(self) -> None:
        """Reads the ledger and tells those who wait."""
        seen = await asyncio.to_thread(self._read, list(self._waiting))
        self._view, self.complete, self.searchable = seen.view, seen.complete, seen.searchable
        self.statistics = seen.statistics
        for key, state in seen.states.items():
            if state.searchable or state.outcome is Outcome.DEAD:
                for waiting in self._waiting.get(key, ()):
                    if not waiting.done():
                        waiting.set_result(state)
        looked, self._next_look = self._next_look, asyncio.Event()
        looked.set()

    def changed(self) -> None:
        """Something was applied or projected here."""
        self._wake.set()

    async def run(self, every: float) -> None:
        """Looks when something changed here, and every so many seconds for other processes."""
        while True:
            with suppress(TimeoutError):  # not wait_for, which may swallow a cancellation before Python 3.12
                async with asyncio.timeout(every):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
            except Exception as error:
                logger.warning("ledger cannot be read", why=str(error))
            await asyncio.sleep(SETTLE_SECONDS)

    async def event(self, key: str | LogPosition, seconds: float) -> EventState:
        """The event's state once it is searchable or dead; when the time is over, as it is then."""
        waiting: asyncio.Future[EventState] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiting)
        self._wake.set()  # it may be so already
        try:
            return await asyncio.wait_for(waiting, seconds)
        except TimeoutError:
            return (await asyncio.to_thread(self._read, [key])).states[key]
        finally:
            self._waiting[key].discard(waiting)
            if not self._waiting[key]:
                del self._waiting[key]

    async def until(self, read: Callable[[], Answer], done: Callable[[Answer], bool], seconds: float) -> Answer:
        """The first answer that is done, else the last one when the time is over. `read` runs in a thread."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            next_look = self._next_look  # before the read, so that no change between the two is missed
            answer = await asyncio.to_thread(read)
            left = deadline - asyncio.get_running_loop().time()
            if done(answer) or left <= 0:
                return answer
            with suppress(TimeoutError):
                await asyncio.wait_for(next_look.wait(), left)

    def _read(self, keys: Sequence[str | LogPosition]) -> _Seen:
        """All that is asked for, as of one moment: as many as wait, they cost one look."""
        with self._database.reading() as connection:
            view = serving_view(connection)
            return _Seen(
                view,
                is_complete(connection, view),
                progress.searchable(connection),
                progress.event_states(connection, keys),
                self._read_statistics(connection, view),
            )

    def _read_statistics(self, connection: Connection, view: View) -> Statistics:
        """Those in hand, unless there are newer ones."""
        if not view.words:
            return NO_STATISTICS
        if read_version(connection, view.words) == self.statistics.version:
            return self.statistics
        return read_statistics(connection, view.words)
