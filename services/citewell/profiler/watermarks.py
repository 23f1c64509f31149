"""Caches the serving view's progress, so that queries need no database read, and wakes callers that wait for events."""

from __future__ import annotations

import asyncio
import time
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

# Pause after each read of the ledger, so that changes in quick succession cost one read: at least so long, and so many
# times as long as the read took. A read takes longer the more callers wait, and must not slow down what they wait for.
SETTLE_SECONDS = 0.1
SETTLE_TIMES = 9.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one read transaction saw of the ledger."""

    view: View
    complete: bool
    searchable: list[LogPosition]
    states: dict[str | LogPosition, EventState]
    statistics: Statistics


class Watermarks:
    """The serving view and its searchable positions as of the last read. Positions only grow, so they stay true."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wake = asyncio.Event()
        self._next_look = asyncio.Event()
        self._waiting: dict[str | LogPosition, set[asyncio.Future[EventState]]] = {}
        self._view: View | None = None
        self.complete = True
        """Whether the serving view is complete; see `is_complete`."""
        self.searchable: list[LogPosition] = []
        self.statistics = NO_STATISTICS
        """Word statistics by which the words of queries are weighted."""

    @property
    def view(self) -> View:
        """The serving view; Unavailable before the ledger is open."""
        if self._view is None:
            raise Unavailable("the profiler is starting", stage="profiler")
        return self._view

    async def look(self) -> None:
        """Reads the ledger and wakes the callers whose events are settled."""
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
        """Tells `run` that this process applied or projected something."""
        self._wake.set()

    async def run(self, every: float) -> None:
        """Reads the ledger after each local change, and every `every` seconds to see what other processes changed."""
        while True:
            with suppress(TimeoutError):  # asyncio.wait_for may swallow a cancellation before Python 3.12
                async with asyncio.timeout(every):
                    await self._wake.wait()
            self._wake.clear()
            started = time.monotonic()
            try:
                await self.look()
            except Exception as error:
                logger.warning("ledger cannot be read", why=str(error))
            took = time.monotonic() - started
            await asyncio.sleep(min(every, max(SETTLE_SECONDS, SETTLE_TIMES * took)))

    async def event(self, key: str | LogPosition, seconds: float) -> EventState:
        """The event's state as soon as it is searchable or dead, or after `seconds` its state at that time."""
        waiting: asyncio.Future[EventState] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiting)
        self._wake.set()  # the event may be settled already
        try:
            async with asyncio.timeout(seconds):  # before Python 3.12 asyncio.wait_for may swallow a cancellation
                return await waiting
        except TimeoutError:
            return (await asyncio.to_thread(self._read, [key])).states[key]
        finally:
            self._waiting[key].discard(waiting)
            if not self._waiting[key]:
                del self._waiting[key]

    async def until(self, read: Callable[[], Answer], done: Callable[[Answer], bool], seconds: float) -> Answer:
        """Repeats `read`, in a thread, until `done` accepts its answer or the time is over. Returns the last answer."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            next_look = self._next_look  # taken before the read, so that no change after the read is missed
            answer = await asyncio.to_thread(read)
            left = deadline - asyncio.get_running_loop().time()
            if done(answer) or left <= 0:
                return answer
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await next_look.wait()

    def _read(self, keys: Sequence[str | LogPosition]) -> _Seen:
        """Reads everything in one transaction, for all waiting callers together."""
        with self._database.reading() as connection:
            view = serving_view(connection)
            return _Seen(
                view,
                is_complete(connection, view),
                progress.searchable(connection, view),
                progress.event_states(connection, keys, view),
                self._read_statistics(connection, view),
            )

    def _read_statistics(self, connection: Connection, view: View) -> Statistics:
        """The cached statistics, or newer ones from the ledger."""
        if not view.words:
            return NO_STATISTICS
        if read_version(connection, view.words) == self.statistics.version:
            return self.statistics
        return read_statistics(connection, view.words)
