"""One query's way through the stages: what time is left, what it took, and what had to be left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from citewell.recommender.answers import Degradation, Reason
from citewell.recommender.queries import Options
from citewell.runtime.errors import DeadlineExceeded
from citewell.scholarly.queries import Query

T = TypeVar("T")

# A stage is not started with less than this left: none ever finished in it.
LEAST_SECONDS = 0.002


@dataclass(slots=True)
class Run:
    """One query in hand: its time, and what there is to tell about it."""

    query: Query
    options: Options
    remaining: Callable[[], float]
    clock: Callable[[], float]
    timings: dict[str, float] = field(default_factory=dict)
    degraded: list[Degradation] = field(default_factory=list)

    async def stage(
        self,
        name: str,
        work: Callable[[float], Coroutine[None, None, T]],
        *,
        at_most: float = float("inf"),
        reserve: float = 0.0,
    ) -> T:
        """The work's result within what is left; DeadlineExceeded instead of a start that cannot finish."""
        seconds = min(self.remaining() - reserve, at_most)
        if seconds < LEAST_SECONDS:
            raise DeadlineExceeded(f"{max(seconds, 0) * 1000:.0f} ms were left, too little to start {name}", stage=name)
        started = self.clock()
        try:
            return await asyncio.wait_for(work(seconds), seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"{name} did not answer within {seconds * 1000:.0f} ms", stage=name) from None
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + self.clock() - started

    def degrade(self, reason: Reason, message: str) -> None:
        self.degraded.append(Degradation(reason, message))


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Runs tasks at the same time; when one fails, the others are cancelled and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
