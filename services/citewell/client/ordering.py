"""Concurrent calls with results in order and bounded memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

READ_AHEAD = 64
"""Items of a plain iterator that are read ahead."""


async def in_order(
    items: AsyncIterable[T], work: Callable[[T], Awaitable[R]], in_flight: int, ahead: int = 0
) -> AsyncIterator[R]:
    """The result of `work` for each item, in order; the first error ends the iteration.

    At most `in_flight` calls run at a time. At most `ahead` items (never less than `in_flight`) are in progress or
    wait for the result of an earlier item.
    """
    permits = asyncio.Semaphore(in_flight)
    window: asyncio.Queue[asyncio.Future[R] | None] = asyncio.Queue(max(in_flight, ahead))
    started: set[asyncio.Future[R]] = set()

    async def one(item: T) -> R:
        async with permits:
            return await work(item)

    async def take() -> None:
        try:
            async for item in items:
                task: asyncio.Future[R] = asyncio.create_task(one(item))
                started.add(task)
                await window.put(task)
        except Exception as error:
            failed: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            started.add(failed)
            await window.put(failed)
        else:
            await window.put(None)
        finally:
            if isinstance(items, AsyncGenerator):
                await items.aclose()

    taking = asyncio.create_task(take())
    try:
        while (task := await window.get()) is not None:
            yield await task
            started.discard(task)
    finally:
        taking.cancel()
        for each in started:
            each.cancel()
        await asyncio.gather(taking, *started, return_exceptions=True)


async def streamed(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """The items. An iterator is read in its own thread, because one that blocks (a pipe) would stop the event loop."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    elif isinstance(items, Sequence):
        for item in items:
            yield item
    else:
        async for item in _read_in_thread(items):
            yield item


async def _read_in_thread(items: Iterable[T]) -> AsyncIterator[T]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(READ_AHEAD)
    stopped = threading.Event()

    def hand_over(found: tuple[T] | Exception | None) -> bool:
        """Waits for room in the queue. False: nobody reads any more."""
        put = queue.put(found)
        try:
            asyncio.run_coroutine_threadsafe(put, loop).result()
        except (RuntimeError, concurrent.futures.CancelledError):  # the event loop is closed, or is ending
            put.close()
            return False
        return not stopped.is_set()

    def read() -> None:
        try:
            for item in items:
                if not hand_over((item,)):
                    return
        except Exception as error:
            hand_over(error)
        else:
            hand_over(None)

    # A daemon thread instead of to_thread: the program's exit would wait for a read that may never return.
    threading.Thread(target=read, name="citewell-reader", daemon=True).start()
    try:
        while (found := await queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found[0]
    finally:
        stopped.set()
        while not queue.empty():  # wakes a reader that waits for room, so that it ends
            queue.get_nowait()
