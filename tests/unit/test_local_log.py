"""Properties of the local log only: one disk, one file, one owner."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from citewell.ingestion.logs.event_log import Claim
from citewell.ingestion.logs.local.consumer import LocalConsumer
from citewell.ingestion.logs.local.log import LocalLog
from citewell.runtime.errors import FailedPrecondition, Overloaded, StorageFull, Unavailable


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await log.start()
    yield log
    await log.stop()


def remove(folder: Path) -> None:
    for path in folder.glob("log.sqlite*"):
        path.unlink()


async def test_appends_that_wait_together_share_a_transaction(log: LocalLog) -> None:
    await asyncio.gather(*(log.append(f"k{number}", b"x", {}) for number in range(500)))
    frames = await log._appending.run(lambda db: db.execute("PRAGMA wal_checkpoint").fetchone()[1])
    assert frames < 100  # pages written; each transaction writes two or more


async def test_a_full_disk_refuses_and_loses_nothing(log: LocalLog) -> None:
    kept = [await log.append("k", b"x" * 1000, {})]
    await log._appending.run(lambda db: db.execute("PRAGMA max_page_count = 40").fetchall())
    with pytest.raises(StorageFull):  # noqa: PT012
        while True:
            kept.append(await log.append("k", b"x" * 1000, {}))
    await log._appending.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
    kept.append(await log.append("k", b"x", {}))
    assert [position.offset for position in kept] == list(range(len(kept)))
    assert len(await log.read(0, 0, 1000, 1000)) == len(kept)


async def test_too_many_waiting_bytes_are_refused_and_come_free_again(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log.sqlite", partitions=1, most_waiting_bytes=1000)
    await log.start()
    for _ in range(2):
        answers = await asyncio.gather(*(log.append("k", bytes(300), {}) for _ in range(10)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        assert len(refused) == 7
        assert "3 events of 900 bytes already wait" in refused[0].message
    assert len(await log.read(0, 0, 100, 100)) == 6
    assert (await log.append("k", bytes(2000), {})).offset == 6  # a single event is accepted whatever its size
    await log.stop()


async def test_appends_that_nobody_waits_for_are_counted_until_they_are_written(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log.sqlite", partitions=1, most_waiting_bytes=1000)
    await log.start()
    with closing(sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the disk blocks
        abandoned = [asyncio.create_task(log.append("k", bytes(300), {})) for _ in range(3)]
        await asyncio.sleep(0)
        for task in abandoned:
            task.cancel()
        await asyncio.wait(abandoned)
        with pytest.raises(Overloaded):
            await log.append("k", bytes(300), {})
        other.execute("ROLLBACK")
    await log.stop()  # writes the accepted events
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await log.start()
    assert len(await log.read(0, 0, 100, 100)) == 3
    await log.stop()


async def test_a_second_owner_is_refused_by_name_and_waits_for_one_that_stops(tmp_path: Path) -> None:
    owner = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await owner.start()
    refused = LocalLog(tmp_path / "log.sqlite", partitions=1, owner_wait_seconds=0.1)
    with pytest.raises(FailedPrecondition, match=f"in use by process {os.getpid()}") as caught:
        await refused.start()
    assert caught.value.reason == "LOG_IN_USE"
    await refused.stop()
    kept = await owner.append("k", b"x", {})  # stopping the refused process did not release the owner's lock
    waiting = LocalLog(tmp_path / "log.sqlite", partitions=1, owner_wait_seconds=60.0)
    starting = asyncio.create_task(waiting.start())
    await asyncio.sleep(0)
    await owner.stop()
    await starting
    assert (await waiting.append("k", b"y", {})).offset == kept.offset + 1
    await waiting.stop()


async def test_a_start_that_failed_may_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").mkdir()
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    with pytest.raises(Unavailable):
        await log.start()
    (tmp_path / "log.sqlite").rmdir()
    await log.start()
    await log.stop()


async def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").write_text("no database" * 1000)
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    with pytest.raises(FailedPrecondition, match="restore it from a backup"):
        await log.start()
    await log.stop()


async def test_a_group_has_one_member_at_a_time(log: LocalLog) -> None:
    first = await log.join("g")
    with pytest.raises(FailedPrecondition) as caught:
        await log.join("g")
    assert caught.value.reason == "GROUP_HAS_A_MEMBER"
    await (await log.join("another")).close()
    await first.close()
    await (await log.join("g")).close()


async def test_what_was_fetched_and_not_committed_comes_again(log: LocalLog, tmp_path: Path) -> None:
    """The members are never closed, as when the process is killed."""
    for _ in range(3):
        await log.append("k", b"x", {})
    consumer = await log.join("g")
    [claim] = await consumer.claims(frozenset())
    assert len(await consumer.fetch(claim, 3, 100, 0.0)) == 3
    await consumer.commit(claim, 1)
    log._lock.release()
    again = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await again.start()
    successor = await again.join("g")
    [claim] = await successor.claims(frozenset())
    assert [record.position.offset for record in await successor.fetch(claim, 3, 100, 0.0)] == [1, 2]
    await again.stop()


async def test_waiting_for_claims_ends_when_the_member_is_closed(log: LocalLog) -> None:
    consumer = await log.join("g")
    held = await consumer.claims(frozenset())
    waiting = asyncio.create_task(consumer.claims(held))
    await asyncio.sleep(0)
    await consumer.close()
    assert await waiting == frozenset()


async def test_a_fetch_that_is_cancelled_as_its_record_comes_ends(log: LocalLog) -> None:
    consumer = await log.join("g")
    [claim] = await consumer.claims(frozenset())
    for turns in range(4):
        fetching = asyncio.create_task(_fetch_for_ever(consumer, claim))
        await asyncio.sleep(0.05)  # it now waits for an append
        log.grown.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait([fetching], timeout=5)
        assert fetching.cancelled(), f"{turns} turns of the loop between event and cancellation"


async def _fetch_for_ever(consumer: LocalConsumer, claim: Claim) -> None:
    while True:
        await consumer.fetch(claim, 1, 100, 60.0)


async def test_a_log_written_for_several_members_keeps_its_commits(tmp_path: Path) -> None:
    """The tables as an earlier version left them."""
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await log.start()
    for _ in range(3):
        await log.append("k", b"x", {})
    await log.stop()
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as db:
        db.executescript(
            """
            DROP TABLE commits;
            CREATE TABLE members ("group" TEXT, member TEXT, beat REAL);
            CREATE TABLE claims ("group" TEXT, partition INTEGER, owner TEXT, generation INTEGER, committed INTEGER);
            INSERT INTO members VALUES ('g', 'm', 1.5);
            INSERT INTO claims VALUES ('g', 0, 'm', 7, 2);
            """
        )
    for _ in range(2):
        log = LocalLog(tmp_path / "log.sqlite", partitions=1)
        await log.start()
        assert [state.committed_offset for state in await log.partitions("g")] == [2]
        await log.stop()


async def test_another_file_in_the_logs_place_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        log = LocalLog(tmp_path / "log.sqlite", partitions=1)
        await log.start()
        await log.stop()
    remove(tmp_path)
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    with pytest.raises(FailedPrecondition) as caught:
        await log.start()
    await log.stop()
    assert caught.value.reason == "LOG_REPLACED"
    (tmp_path / "log.id").unlink()
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await log.start()
    await log.stop()
