"""Threads for a copy in memory: readers run in parallel, a writer runs alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import faiss

from citewell.index.postings import Postings
from citewell.runtime.worker_threads import worker_pool


class CopyThreads:
    """FAISS and NumPy release the GIL in long operations, so threads help."""

    def __init__(self, count: int) -> None:
        # One FAISS thread per search: spread over busy cores, a search would wait for its slowest part.
        self._executor = worker_pool(count, "search", partial(faiss.omp_set_num_threads, 1))
        self.helper = worker_pool(count, "cosines", partial(faiss.omp_set_num_threads, 1))
        self._count, self._permits = count, asyncio.Semaphore(count)

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        async with self._permits:
            return await self._in_thread(work, *args)

    async def run_alone(self, work: Callable[..., Any], *args: Any) -> Any:
        """Takes all permits, then runs. Never call it twice at once: each call would wait for permits of the other."""
        async with contextlib.AsyncExitStack() as held:
            for _ in range(self._count):
                await held.enter_async_context(self._permits)
            return await self._in_thread(work, *args)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        running = asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # cancellation does not stop the thread: hold the permit until it ends
            raise

    def shutdown(self) -> None:
        self._executor.shutdown()
        self.helper.shutdown()


async def postings_merged(postings: Postings, threads: CopyThreads) -> None:
    """Merges all segments that are due. Searches go on meanwhile; only the exchange of segments runs alone."""
    while due := postings.due():
        merged = await threads.run(postings.merged, due)
        await threads.run_alone(postings.replace, due, merged)
