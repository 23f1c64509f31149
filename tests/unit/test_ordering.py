"""Concurrent calls: results and errors in order, few items read ahead, and no task left running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from citewell.client.ordering import READ_AHEAD, in_order, streamed


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_results_come_in_order_and_few_calls_run_at_a_time() -> None:
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number

    assert [number async for number in in_order(numbers(50), work, 4)] == list(range(50))
    assert most == 4


async def test_more_items_may_wait_than_calls_run() -> None:
    taken, release = [], asyncio.Event()

    async def source() -> AsyncIterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    async def work(number: int) -> int:
        await release.wait()
        return number

    results = in_order(source(), work, 2, ahead=20)
    first = asyncio.ensure_future(anext(results))
    for _ in range(1000):  # far more iterations of the event loop than needed to fill the window
        await asyncio.sleep(0)
    assert 21 <= len(taken) <= 23
    release.set()
    assert await first == 0
    assert [number async for number in results] == list(range(1, 100))


@pytest.mark.parametrize("where", ["work", "source"])
async def test_the_first_error_ends_it_after_the_results_before_it(where: str) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(20):
            if where == "source" and number == 3:
                raise ValueError("broken")
            yield number

    async def work(number: int) -> int:
        if where == "work" and number == 3:
            raise ValueError("broken")
        if number > 3:
            await asyncio.sleep(3600)
        return number

    results = in_order(source(), work, 4)
    assert [await anext(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        await anext(results)
    assert len(asyncio.all_tasks()) == 1


async def test_an_iterator_that_blocks_does_not_stop_the_event_loop() -> None:
    going_on = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        assert going_on.wait(10)
        yield 2

    items = streamed(slow())
    assert await anext(items) == 1
    going_on.set()  # reached only if the event loop is not blocked
    assert [item async for item in items] == [2]


async def test_an_iterator_is_read_only_as_far_as_needed_and_its_thread_ends() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    items = streamed(endless())
    assert await anext(items) == 1
    await items.aclose()  # type: ignore[attr-defined]
    [reader] = [thread for thread in threading.enumerate() if thread.name == "citewell-reader"]
    await asyncio.to_thread(reader.join, 10)
    assert not reader.is_alive()
    assert read <= READ_AHEAD + 3


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
async def test_an_error_of_the_iterator_is_told(kind: type[Exception]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise kind("the pipe broke")

    async def read() -> list[int]:
        return [item async for item in streamed(broken())]

    with pytest.raises(kind, match="the pipe broke"):
        await asyncio.wait_for(read(), 10)
