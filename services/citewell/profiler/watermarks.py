"""How far the serving view is, kept in memory so that a query costs no database read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from citewell.profiler.ledger import progress
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.rules import Position
from citewell.profiler.ledger.views import View, serving_view
from citewell.runtime.errors import Unavailable
from citewell.runtime.telemetry import logger

Answer = TypeVar("Answer")


class Watermarks:
    """The serving view and its searchable positions; what they say was true at the last look, and stays true."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wake = asyncio.Event()
        self._next_look = asyncio.Event()
        self._view: View | None = None
        self.searchable: list[Position] = []

    @property
    def view(self) -> View:
        """The serving view; Unavailable before the ledger is open."""
        if self._view is None:
            raise Unavailable("the profiler is starting", stage="profiler")
        return self._view

    async def look(self) -> None:
        """Reads the ledger and tells those who wait."""
        self._view, self.searchable = await asyncio.to_thread(self._read)
        looked, self._next_look = self._next_look, asyncio.Event()
        looked.set()

    def changed(self) -> None:
        """Something was applied or projected here."""
        self._wake.set()

    async def run(self, every: float) -> None:
        """Looks when something changed here, and every so many seconds for other processes."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), every)
            self._wake.clear()
            try:
                await self.look()
            except Exception as error:
                logger.warning("ledger cannot be read", why=str(error))

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

    def _read(self) -> tuple[View, list[Position]]:
        with self._database.reading() as connection:
            view = serving_view(connection)
            return view, progress.searchable(connection) if view.projected else []
