"""Deadlines: what is left of a call's time, seen by everything done for it."""

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

# Kept back for the way home: an answer that arrives after the caller's deadline is of no use.
MARGIN_SECONDS = 0.005

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def remaining() -> float:
    """Seconds left for the call in hand, infinite outside of one."""
    return _deadline.get() - time.monotonic()


def budget(work: str, at_least: float = 0.0) -> float:
    """Seconds that may be given to some work; DeadlineExceeded when too few are left to start it."""
    left = remaining() - MARGIN_SECONDS
    if left <= at_least:
        raise DeadlineExceeded(f"{max(left, 0.0) * 1000:.0f} ms were left, too little to start {work}", stage=work)
    return left


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limits what is done inside to so many seconds, or to what was left already if that is less."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


async def in_time(work: Awaitable[T], stage: str) -> T:
    """The work's result within what is left of the call's time; DeadlineExceeded names the stage."""
    seconds = remaining() - MARGIN_SECONDS
    try:
        # Not wait_for: an error would hold its task, the task the error, and both the request until garbage collection.
        async with asyncio.timeout(None if math.isinf(seconds) else max(seconds, 0.0)):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(f"the time ended during {stage}", stage=stage) from None
