"""The deadline of the current call, in a context variable that everything done for the call can read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from citewell.runtime.errors import DeadlineExceeded

T = TypeVar("T")

# Reserved for sending the answer: one that arrives after the caller's deadline is of no use.
MARGIN_SECONDS = 0.005

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def remaining() -> float:
    """Seconds until the deadline of the current call; infinite outside of a call."""
    return _deadline.get() - time.monotonic()


def budget(work: str, at_least: float = 0.0) -> float:
    """Seconds that the work may take; DeadlineExceeded when too few are left to start it."""
    left = remaining() - MARGIN_SECONDS
    if left <= at_least:
        raise DeadlineExceeded(f"{max(left, 0.0) * 1000:.0f} ms were left, too little to start {work}", stage=work)
    return left


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Sets the deadline of what is done inside: so many seconds from now, or the outer deadline if that is earlier."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


async def in_time(work: Awaitable[T], stage: str) -> T:
    """The work's result; DeadlineExceeded, naming the stage, when the deadline comes first."""
    seconds = remaining() - MARGIN_SECONDS
    try:
        # Not wait_for: an error would hold its task, the task the error, and both the request until garbage collection.
        async with asyncio.timeout(None if math.isinf(seconds) else max(seconds, 0.0)):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(f"the time ended during {stage}", stage=stage) from None
