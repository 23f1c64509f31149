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
# Weight of the newest call in the running mean of what an undisturbed call takes.
SHARE = 0.1
# How long an answer counts in what answers cost. Answers come in bunches; a mean over a few of them would fall with
# every bunch, and so many calls would be taken then that all wait a third longer than allowed.
REMEMBERED_SECONDS = 2.0
# So much of what was known is kept at each answer at least, however long it took.
KEPT = 0.9
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
    undisturbed: float = 0.0
    """Seconds that a call takes when few others are in progress."""
    _busy: float = 0.0
    """Seconds in which calls were in progress lately; old ones count less and less, as in `_answers`."""
    _answers: float = 0.0
    """Calls that ended in these seconds."""
    _crowded: float = -math.inf
    """When more than a few calls were last in progress."""
    _answered: float = 0.0
    """When the last call ended, or the first one began after there was none."""

    @property
    def cost(self) -> float:
        """Seconds from one answer to the next while calls are in progress."""
        return self._busy / self._answers if self._answers else 0.0

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
                self._note_answer(now - self._answered)
                if self._crowded < started:
                    self.undisturbed = _mean(self.undisturbed, now - started)
            self._answered = now

    def _note_answer(self, seconds: float) -> None:
        kept = max(math.exp(-seconds / REMEMBERED_SECONDS), KEPT)
        self._busy = kept * self._busy + seconds
        self._answers = kept * self._answers + 1

    def _note_crowd(self, now: float) -> None:
        if self.in_flight > FEW:
            self._crowded = now


def _mean(known: float, new: float) -> float:
    return known + SHARE * (new - known) if known else new
