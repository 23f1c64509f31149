"""Members of a local log's groups, where timing is what matters."""

from __future__ import annotations

import asyncio

from citewell.ingestion.local_groups import _within


async def test_a_wait_that_is_cancelled_as_its_event_happens_ends() -> None:
    event = asyncio.Event()

    async def beats() -> None:
        while True:
            await _within(event.wait(), 60)
            event.clear()

    task = asyncio.create_task(beats())
    await asyncio.sleep(0)  # it waits
    for turns in range(4):
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled(), f"{turns} turns of the loop between event and cancellation"
        task = asyncio.create_task(beats())
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
