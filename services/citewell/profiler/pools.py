"""Thread pools, one for each kind of work: one kind that is stuck takes no thread from another."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Pool:
    """A thread pool that handlers await. The caller's deadline and trace are seen by the work."""

    def __init__(self, name: str, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, name)

    async def run(self, work: Callable[..., Answer], *args: Any, **named: Any) -> Answer:
        """The result of work(*args, **named), done in one of the pool's threads."""
        call = partial(contextvars.copy_context().run, work, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Starts nothing more; does not wait for what runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
