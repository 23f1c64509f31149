"""Who may use what serves few at a time: who has least left to do goes first, among equals who came first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Hands out turns to threads.

    Shared out evenly, n equal pieces of work would all be done when the last is; one after another they are done in
    half the time on average, and a short piece need not wait for a long one.
    """

    def __init__(self, places: int = 1) -> None:
        """`places`: how many may have a turn at a time."""
        self._free = places
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """How many threads wait for a turn."""
        return len(self._waiting)

    @contextmanager
    def turn(self, left: int) -> Iterator[None]:
        """Waits for a turn, and has it inside; `left` = how much the caller still has to do, this turn included."""
        with self._changed:
            mine = (left, next(self._numbers))
            heapq.heappush(self._waiting, mine)
            self._changed.wait_for(lambda: self._free and self._waiting[0] == mine)
            heapq.heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
