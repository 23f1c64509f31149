"""What is special about the local log: one disk, one machine's clock, one file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from citewell.ingestion import local_log
from citewell.ingestion.local_groups import LocalConsumer
from citewell.ingestion.local_log import LocalLog
from citewell.ingestion.log import Claim, ClaimLost
from citewell.runtime.errors import FailedPrecondition, Overloaded, StorageFull

LEASE = 10.0


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    log = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await log.start()
    yield log
    await log.stop()


class Clock:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


async def member(log: LocalLog, clock: Clock) -> LocalConsumer:
    """One whose heart beats only when the test says so."""
    consumer = LocalConsumer(log, log._reading, "g", 1, LEASE, monotonic=clock)
    await consumer._beat()
    return consumer


def remove(folder: Path) -> None:
    for path in folder.glob("log.sqlite*"):
        path.unlink()


def held(consumer: LocalConsumer) -> list[Claim]:
    return list(consumer._held.values())


async def test_appends_that_wait_together_share_a_transaction(log: LocalLog) -> None:
    await asyncio.gather(*(log.append(f"k{number}", b"x", {}) for number in range(500)))
    frames = await log._appending.run(lambda db: db.execute("PRAGMA wal_checkpoint").fetchone()[1])
    assert frames < 100  # pages written; each transaction writes two or more


async def test_two_processes_append_without_a_gap(log: LocalLog, tmp_path: Path) -> None:
    other = LocalLog(tmp_path / "log.sqlite", partitions=1)
    await other.start()
    positions = await asyncio.gather(*(each.append("k", b"x", {}) for _ in range(100) for each in (log, other)))
    await other.stop()
    assert sorted(position.offset for position in positions) == list(range(200))


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


async def test_too_many_waiting_appends_are_refused(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_log, "MOST_WAITING", 3)
    answers = await asyncio.gather(*(log.append("k", b"x", {}) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(answer, Overloaded) for answer in answers) == 7
    assert len(await log.read(0, 0, 100, 100)) == 3


async def test_a_member_that_sleeps_through_its_lease_is_fenced_off(log: LocalLog) -> None:
    await log.append("k", b"x", {})
    sleeper = await member(log, Clock(100.0))
    [claim] = held(sleeper)
    assert len(await sleeper.fetch(claim, 1, 100, 0.0)) == 1
    other = await member(log, Clock(100.0 + LEASE + 1))
    [taken] = held(other)
    assert taken.generation > claim.generation
    with pytest.raises(ClaimLost):
        await sleeper.commit(claim, 1)
    await other.commit(taken, 1)
    await sleeper._beat()  # awake again: the partition is not its own
    assert claim not in held(sleeper)


async def test_a_member_that_was_late_but_not_replaced_goes_on(log: LocalLog) -> None:
    clock = Clock(100.0)
    consumer = await member(log, clock)
    [claim] = held(consumer)
    clock.seconds += 5 * LEASE
    await consumer.commit(claim, 0)
    await consumer._beat()
    assert held(consumer) == [claim]


async def test_beats_written_before_the_machine_started_anew_keep_nobody_alive(log: LocalLog) -> None:
    before = await member(log, Clock(1_000_000.0))
    assert len(held(before)) == 1
    after = await member(log, Clock(5.0))
    assert len(held(after)) == 1


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
