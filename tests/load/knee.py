"""Finds the highest rate at which services keep up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

GROWTH = 1.5
"""Factor between two steps on the way up."""
REFINEMENTS = 3
"""Bisections between the last rate that was kept up with and the first that was not."""
SLOWER = 4.0
"""p99 may be so many times that of the first step, or MORE_SECONDS more, whichever is longer."""
MORE_SECONDS = 0.2
UNANSWERED = 0.01
"""Share of requests that may be refused or fail."""
MOST_STEPS = 24


@dataclass(frozen=True, slots=True)
class Step:
    """What was measured at one rate."""

    rate: float
    """Requests offered a second."""
    answered: float
    """Requests answered a second."""
    p50: float
    p99: float
    unanswered: float
    """Share of requests that were refused or failed."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The steps by rate, and the highest rate that was kept up with; 0 if there was none."""

    steps: Sequence[Step]
    rate: float


def keeps_up(step: Step, first: Step) -> bool:
    """Whether the services keep up at this rate: all is answered, and about as fast as at the first step."""
    return step.unanswered <= UNANSWERED and step.p99 <= max(SLOWER * first.p99, first.p99 + MORE_SECONDS)


async def find_knee(measure: Callable[[float], Awaitable[Step]], first: float) -> Knee:
    """Raises the rate until the services no longer keep up, then bisects."""
    rate, good, bad = first, 0.0, 0.0
    steps: list[Step] = []
    while len(steps) < MOST_STEPS and not bad:
        steps.append(await measure(rate))
        if keeps_up(steps[-1], steps[0]):
            good, rate = rate, rate * GROWTH
        else:
            bad = rate
    for _ in range(REFINEMENTS if good and bad else 0):
        rate = (good + bad) / 2
        steps.append(await measure(rate))
        if keeps_up(steps[-1], steps[0]):
            good = rate
        else:
            bad = rate
    return Knee(sorted(steps, key=lambda step: step.rate), good)


def table(knee: Knee) -> str:
    """The steps as a Markdown table."""
    rows = ["| offered/s | answered/s | p50 ms | p99 ms | unanswered |", "|---|---|---|---|---|"]
    for step in knee.steps:
        mark = " **knee**" if step.rate == knee.rate else ""
        rows.append(
            f"| {step.rate:.1f}{mark} | {step.answered:.1f} | {1000 * step.p50:.0f} | {1000 * step.p99:.0f} "
            f"| {step.unanswered:.1%} |"
        )
    return "\n".join(rows)
