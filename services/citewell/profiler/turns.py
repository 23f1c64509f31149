"""A priority semaphore for threads: shortest remaining work first, then first come."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Limits how many threads compute at once, and admits the one with the shortest remaining work first.

    If n equal jobs share the cores, all of them end when the last one does. One after another they end after half that
    time on average, and a short job does not wait for a long one.
    """

    def __init__(self, places: int = 1) -> None:
        """`places`: how many threads may have a turn at the same time."""
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
        """Waits for a turn and holds it in the `with` block; `left` = the caller's remaining work with this turn."""
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
