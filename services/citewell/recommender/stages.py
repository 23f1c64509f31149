"""The stages of one query: how much time each may take, how long it took, and what had to be left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from citewell.recommender.answers import Degradation, Reason
from citewell.recommender.breaker import Breaker
from citewell.recommender.queries import Options
from citewell.runtime.errors import CitewellError, DeadlineExceeded, MessageTooLarge, Overloaded
from citewell.scholarly.queries import Query

T = TypeVar("T")
Work = Callable[[float], Coroutine[None, None, T]]
"""The work of a stage, given the seconds it may take."""

# A stage is not started with less than this left, since no stage finishes in it.
LEAST_SECONDS = 0.002
# Optional stages leave this much time, or this share of what is left, for the answer without them.
ANSWER_SECONDS = 0.02
ANSWER_SHARE = 0.05


@dataclass(slots=True)
class Run:
    """One query being answered: its time, and what the answer must say about its stages."""

    query: Query
    options: Options
    remaining: Callable[[], float]
    clock: Callable[[], float]
    timings: dict[str, float] = field(default_factory=dict)
    degraded: list[Degradation] = field(default_factory=list)

    async def stage(self, name: str, work: Work[T], *, at_most: float = float("inf"), reserve: float = 0.0) -> T:
        """The work's result within the time left, or DeadlineExceeded. Work that cannot finish is not started."""
        seconds = min(self.remaining() - reserve, at_most)
        if seconds < LEAST_SECONDS:
            raise DeadlineExceeded(f"{max(seconds, 0) * 1000:.0f} ms were left, too little to start {name}", stage=name)
        started = self.clock()
        try:
            async with asyncio.timeout(seconds):  # before Python 3.12 asyncio.wait_for may swallow a cancellation
                return await work(seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"{name} did not answer within {seconds * 1000:.0f} ms", stage=name) from None
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + self.clock() - started

    def degrade(self, reason: Reason, message: str) -> None:
        """Says that the answer is less than it could be, once for each reason."""
        if all(told.reason is not reason for told in self.degraded):
            self.degraded.append(Degradation(reason, message))


@dataclass(frozen=True, slots=True)
class OptionalStage:
    """A stage that an answer can do without. Its failure degrades the answer and never fails it."""

    name: str
    at_most: float
    breaker: Breaker
    reason: Reason
    consequence: str
    overloaded: Reason | None = None
    """The reason when the other service is overloaded, where it is another one."""
    late: Reason | None = None
    """The reason when the stage took too long, where it is another one."""

    async def result(self, run: Run, work: Work[T], *, share: float = 1.0) -> T | None:
        """The result, or None and a degradation. `share` of the time left is the most that the stage may take."""
        if not self.breaker.admits():
            run.degrade(self.reason, f"{self.name} failed repeatedly and is not tried for a while; {self.consequence}")
            return None
        left = run.remaining()
        reserve = max(ANSWER_SECONDS, ANSWER_SHARE * left)
        try:
            result = await run.stage(self.name, work, at_most=self.at_most, reserve=max(reserve, (1 - share) * left))
        except (Overloaded, MessageTooLarge) as error:  # it works, so the breaker stays closed
            run.degrade(self.overloaded or self.reason, f"{error.message}; {self.consequence}")
            return None
        except DeadlineExceeded as error:
            if run.remaining() > 2 * reserve:
                self.breaker.failed()  # the stage was too slow, not the caller's deadline too short
            run.degrade(self.late or self.reason, f"{error.message}; {self.consequence}")
            return None
        except CitewellError as error:
            self.breaker.failed()
            run.degrade(self.reason, f"{error.message}; {self.consequence}")
            return None
        self.breaker.succeeded()
        return result


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Runs tasks at the same time; when one fails, the others are cancelled and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
