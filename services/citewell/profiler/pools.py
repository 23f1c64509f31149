"""Thread pools, one for each kind of work, so that blocked work of one kind takes no threads from another kind."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from citewell.runtime.worker_threads import worker_pool

Answer = TypeVar("Answer")


class Pool:
    """A thread pool for async handlers. The caller's deadline and trace are passed on to the work."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = worker_pool(threads, name)

    async def run(self, work: Callable[..., Answer], *args: Any, **named: Any) -> Answer:
        """The result of work(*args, **named), done in one of the pool's threads."""
        call = partial(contextvars.copy_context().run, work, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Cancels queued work. Does not wait for running work."""
        self._executor.shutdown(wait=False, cancel_futures=True)
