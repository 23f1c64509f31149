"""How long the oldest unfinished item of a queue has waited, told from samples of the queue's two ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

MOST_SAMPLES = 4096


@dataclass(slots=True)
class Backlog:
    """The waiting times of several queues, each named by a key.

    An item's arrival is known as exactly as the samples are close to each other. Nothing is known of the time before
    the process started: what waited then counts from the first sample.
    """

    clock: Callable[[], float]
    _arrivals: dict[Hashable, deque[tuple[int, float]]] = field(default_factory=dict)
    _done: dict[Hashable, int] = field(default_factory=dict)

    def sample(self, key: Hashable, end: int, done: int) -> None:
        """Tells that items up to `end` have arrived, and that those up to `done` are finished."""
        arrivals = self._arrivals.setdefault(key, deque())
        if not arrivals or end > arrivals[-1][0]:
            if len(arrivals) == MOST_SAMPLES:
                arrivals.pop()  # keep the oldest: later arrivals then count from a later sample
            arrivals.append((end, self.clock()))
        while len(arrivals) > 1 and arrivals[0][0] <= done:
            arrivals.popleft()
        self._done[key] = done

    def keep(self, keys: set[Hashable]) -> None:
        """Forgets the other queues."""
        for gone in self._arrivals.keys() - keys:
            del self._arrivals[gone], self._done[gone]

    def seconds(self) -> dict[Hashable, float]:
        """For each queue, how long its oldest unfinished item has waited; 0 when nothing waits."""
        now = self.clock()
        return {
            key: max(0.0, now - arrivals[0][1]) if arrivals and arrivals[0][0] > self._done[key] else 0.0
            for key, arrivals in self._arrivals.items()
        }
