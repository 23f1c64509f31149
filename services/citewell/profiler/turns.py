"""A priority semaphore for threads: short remaining work first, but none waits for ever."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A thread goes before one with twice its work that came less than so many seconds earlier. Without that limit, the
# longest queries of an overload wait until no shorter one is left.
SECONDS_A_DOUBLING = 0.1


class Turns:
    """Limits how many threads compute at once, and admits those with short remaining work first.

    If n equal jobs share the cores, all of them end when the last one does. One after another they end after half that
    time on average, and a short job does not wait for a long one. A long job that has waited goes before short ones
    that come later, so it always gets its turn.
    """

    def __init__(self, places: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """`places`: how many threads may have a turn at the same time."""
        self._free, self._clock = places, clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """How many threads wait for a turn."""
        return len(self._waiting)

    @contextmanager
    def turn(self, left: int) -> Iterator[None]:
        """Waits for a turn and holds it in the `with` block; `left` = the caller's remaining work with this turn."""
        self._take(left)
        try:
            yield
        finally:
            self._give()

    def _take(self, left: int) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Event()
            due = self._clock() + SECONDS_A_DOUBLING * math.log2(max(left, 1))
            heapq.heappush(self._waiting, (due, next(self._numbers), mine))
        mine.wait()

    def _give(self) -> None:
        """Hands the turn to the thread that is next, and wakes no other."""
        with self._lock:
            if self._waiting:
                *_, next_one = heapq.heappop(self._waiting)
                next_one.set()
            else:
                self._free += 1
