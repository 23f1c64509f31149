"""Group commit: waiting writers share one sync, and a sync that began before a write does not count for it."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from citewell.index.durability import GroupCommit
from citewell.runtime.errors import Unavailable


class Disk:
    """Numbers writes; a sync blocks until the test lets it end."""

    def __init__(self) -> None:
        self.written, self.durable, self.syncs = 0, 0, 0
        self.error: OSError | None = None
        self.began, self.let_go = threading.Semaphore(0), threading.Semaphore(0)
        self.commit = GroupCommit(self.sync, lambda: self.written)

    def sync(self) -> None:
        self.syncs += 1
        covered = self.written
        self.began.release()
        assert self.let_go.acquire(timeout=10)
        if self.error is not None:
            raise self.error
        self.durable = covered

    def write(self) -> asyncio.Task[None]:
        self.written += 1
        number = self.written

        async def until_durable() -> None:
            await self.commit.durable(number)
            assert self.durable >= number, "acknowledged before it was synced"

        return asyncio.create_task(until_durable())

    async def sync_begins(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=10)


async def test_writers_that_wait_share_a_sync_and_none_is_acknowledged_too_early() -> None:
    disk = Disk()
    first = disk.write()
    await disk.sync_begins()
    later = [disk.write() for _ in range(50)]
    for _ in range(2):
        disk.let_go.release()
    await asyncio.wait_for(asyncio.gather(first, *later), 10)
    assert disk.syncs == 2
    await disk.commit.durable(disk.written)
    assert disk.syncs == 2, "what is durable is not synced again"


async def test_a_writer_that_gives_up_leaves_the_sync_to_the_others() -> None:
    disk = Disk()
    leaves, stays = disk.write(), disk.write()
    await disk.sync_begins()
    leaves.cancel()
    disk.let_go.release()
    await asyncio.wait_for(stays, 10)


async def test_after_a_failed_sync_nothing_is_acknowledged_any_more() -> None:
    disk = Disk()
    disk.error = OSError(errno.EIO, "Input/output error")
    writes = [disk.write() for _ in range(3)]
    disk.let_go.release()
    for write in writes:
        with pytest.raises(Unavailable, match="Input/output error"):
            await write
    disk.error = None
    disk.let_go.release()
    with pytest.raises(Unavailable, match="until it is restarted"):
        await disk.write()
    assert disk.syncs == 1
