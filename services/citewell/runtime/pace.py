"""Refuses calls while those taken make one another slow, so that what is taken is answered about as fast as usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from citewell.runtime import telemetry
from citewell.runtime.errors import Overloaded

_shed = telemetry.meter.create_counter("citewell_calls_shed", description="Calls refused by admission, by limit")

# So many calls in progress are always taken, and do not count as disturbing one another.
FEW = 2
# Weight of the newest call in the running means. The same up and down: answers come in bunches, so that some gaps
# between them are short whatever they cost.
SHARE = 0.1
# What a call may take until it is known what is usual.
UNKNOWN_SECONDS = 5.0
LEAST_RETRY_SECONDS, MOST_RETRY_SECONDS = 0.05, 5.0


@dataclass(slots=True)
class Taken:
    """A call that is in progress."""

    tells: bool = True
    """Whether how long it takes says something of the pace. Not so if it waited for a service that is lost."""


@dataclass(slots=True)
class Pace:
    """Expects a call to take as long as the calls in progress, one after the other, and refuses it if that is too long.

    Too long is more than `seconds`, and more than `times` what a call takes when few others are in progress. So a fast
    machine keeps a queue of `seconds`, and a slow one is not idle because of it.
    """

    name: str
    seconds: float
    times: float
    clock: Callable[[], float]
    in_flight: int = 0
    cost: float = 0.0
    """Seconds from one answer to the next while calls are in progress."""
    undisturbed: float = 0.0
    """Seconds that a call takes when few others are in progress."""
    _crowded: float = -math.inf
    """When more than a few calls were last in progress."""
    _answered: float = 0.0
    """When the last call ended, or the first one began after there was none."""

    @contextmanager
    def call(self, seconds_left: float, *, refuse: bool = True) -> Iterator[Taken]:
        """Counts a call while it runs. Raises Overloaded if it would take too long, unless `refuse` is false."""
        expected = (self.in_flight + 1) * self.cost
        usual = self.times * self.undisturbed if self.undisturbed else UNKNOWN_SECONDS
        allowed = min(seconds_left, max(self.seconds, usual))
        if refuse and self.in_flight >= FEW and expected > allowed:
            _shed.add(1, {"rpc.method": self.name, "limit": "time"})
            raise Overloaded(
                f"{self.name}: an answer would take about {expected:.1f} s and may take {allowed:.1f} s",
                retry_after_seconds=min(max(expected / 2, LEAST_RETRY_SECONDS), MOST_RETRY_SECONDS),
            )
        started = self.clock()
        if not self.in_flight:
            self._answered = started
        self.in_flight += 1
        self._note_crowd(started)
        taken = Taken()
        try:
            yield taken
        finally:
            # A call that failed or was cancelled late has cost as much as one that was answered.
            now = self.clock()
            self._note_crowd(now)
            self.in_flight -= 1
            if taken.tells:
                self.cost = _mean(self.cost, now - self._answered)
                if self._crowded < started:
                    self.undisturbed = _mean(self.undisturbed, now - started)
            self._answered = now

    def _note_crowd(self, now: float) -> None:
        if self.in_flight > FEW:
            self._crowded = now


def _mean(known: float, new: float) -> float:
    return known + SHARE * (new - known) if known else new
