"""The worker with a log and a ledger in memory, whose failures hypothesis generates."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.ingestion.logs.event_log import (
    READ_BYTES,
    Claim,
    ClaimLost,
    DeadLetter,
    LogBroken,
    LogPosition,
    PartitionState,
    Record,
)
from citewell.ingestion.worker import ApplyTimedOut, Pace, Verdict, Worker
from citewell.runtime.errors import CitewellError, DeadlineExceeded, FailedPrecondition, Internal, Unavailable
from citewell.scholarly.outcomes import Outcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PACE = Pace(most_records=4, most_bytes=1000, poll_seconds=0.0, first_backoff_seconds=1.0, longest_backoff_seconds=8.0)


class Faults:
    """Raises the drawn errors, one at each call that may fail, until none is left."""

    def __init__(self, errors: Sequence[CitewellError | None] = ()) -> None:
        self._errors = list(errors)

    def strike(self) -> None:
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error


class MemoryLog:
    """A log that checks at every commit that all earlier events took effect or are dead."""

    kind, log_id = "memory", "log"

    def __init__(self, sizes: Sequence[int], faults: Faults) -> None:
        self.faults = faults
        self.records = [
            [Record(LogPosition("log", p, i), f"{p}/{i}", b"x" * 10, {}, NOW) for i in range(size)]
            for p, size in enumerate(sizes)
        ]
        self.committed = [0] * len(sizes)
        self.generation = 0
        self.letters: dict[LogPosition, DeadLetter] = {}
        self.effective: set[LogPosition] = set()
        self.recorded_dead: set[LogPosition] = set()
        self.lost: set[LogPosition] = set()
        self.members = 0

    @property
    def done(self) -> bool:
        return self.committed == [len(records) for records in self.records]

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def append(self, key: str, value: bytes, headers: Mapping[str, str]) -> LogPosition:
        raise NotImplementedError

    async def partitions(self, group: str) -> list[PartitionState]:
        raise NotImplementedError

    async def read(self, partition: int, first: int, end: int, most: int, most_bytes: int = READ_BYTES) -> list[Record]:
        raise NotImplementedError

    async def offset_at(self, partition: int, when: datetime) -> int:
        raise NotImplementedError

    async def join(self, group: str) -> "MemoryConsumer":
        self.faults.strike()
        self.members += 1
        return MemoryConsumer(self)

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self.faults.strike()
            self.letters.setdefault(letter.record.position, letter)

    async def dead_letters(self, after: LogPosition | None, most: int) -> list[DeadLetter]:
        raise NotImplementedError

    async def find_dead_letters(self, positions: Sequence[LogPosition]) -> list[DeadLetter]:
        self.faults.strike()
        return [self.letters[position] for position in positions if position in self.letters]

    async def count_dead_letters(self) -> int:
        return len(self.letters)


class MemoryConsumer:
    def __init__(self, log: MemoryLog) -> None:
        log.generation += 1
        self._log, self._generation = log, log.generation
        self._next = dict(enumerate(log.committed))

    async def claims(self, known: frozenset[Claim]) -> frozenset[Claim]:
        held = frozenset(Claim(partition, self._generation) for partition in self._next)
        if held == known:
            await asyncio.Event().wait()
        return held

    async def fetch(self, claim: Claim, most: int, most_bytes: int, wait_seconds: float) -> list[Record]:
        await asyncio.sleep(0)
        self._log.faults.strike()
        if claim.generation != self._log.generation:
            raise ClaimLost("taken over")
        start = self._next[claim.partition]
        records = self._log.records[claim.partition][start : start + most]
        self._next[claim.partition] += len(records)
        return records

    async def commit(self, claim: Claim, offset: int) -> None:
        self._log.faults.strike()
        if claim.generation != self._log.generation:
            raise ClaimLost("taken over")
        before = {record.position for record in self._log.records[claim.partition][:offset]}
        dead = self._log.letters.keys() & self._log.recorded_dead
        self._log.lost |= before - self._log.effective - dead
        assert offset >= self._log.committed[claim.partition]
        self._log.committed[claim.partition] = offset

    async def close(self) -> None:
        self._log.members -= 1


class MemoryLedger:
    """Applies events in order, one at a time; events whose number is in `dead` always fail."""

    def __init__(self, log: MemoryLog, dead: frozenset[int], faults: Faults) -> None:
        self._log, self.dead, self.faults = log, dead, faults
        self.first_applied: list[LogPosition] = []
        self.batches: list[int] = []

    async def apply(self, records: Sequence[Record]) -> list[Verdict]:
        assert not self._log.letters.keys() & {record.position for record in records}, "the dead were judged again"
        self.faults.strike()  # before anything was done
        await asyncio.sleep(0)
        self.batches.append(len(records))
        verdicts = []
        for record in records:
            if record.position.offset in self.dead:
                verdicts.append(Verdict(Outcome.DEAD, record.key, "paper", "BAD", "never"))
                continue
            known = record.position in self._log.effective
            self._log.effective.add(record.position)
            if not known:
                self.first_applied.append(record.position)
            verdicts.append(Verdict(Outcome.DUPLICATE if known else Outcome.APPLIED, record.key))
        self.faults.strike()  # applied, but the answer is lost
        return verdicts

    def names(self, record: Record) -> tuple[str, str]:
        return f"event-{record.key}", "paper"

    async def record_dead(self, letters: Sequence[DeadLetter]) -> None:
        self.faults.strike()
        for letter in letters:
            assert letter.record.position in self._log.letters, "recorded before its dead letter was delivered"
            self._log.recorded_dead.add(letter.record.position)


class Naps:
    """Records the requested times without sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def worker_on(log: MemoryLog, ledger: MemoryLedger, naps: Naps) -> Worker:
    return Worker(log, ledger, "g", PACE, now=lambda: NOW, sleep=naps, draw=lambda: 1.0)


async def run_until(worker: Worker, condition: Callable[[], bool], steps: int = 10_000) -> None:
    """Runs the worker for at most this many iterations of the event loop."""
    task = asyncio.create_task(worker.run())
    for _ in range(steps):
        if condition() or task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


errors = st.sampled_from(
    [Unavailable("gone"), DeadlineExceeded("late"), Internal("defect"), FailedPrecondition("mend me"), LogBroken("gap")]
)
schedules = st.lists(st.one_of(st.none(), errors), max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    dead=st.frozensets(st.integers(0, 11)),
    log_faults=schedules,
    ledger_faults=schedules,
    crashes=st.lists(st.integers(0, 60), max_size=3),
)
def test_every_record_takes_effect_or_is_dead(
    sizes: list[int],
    dead: frozenset[int],
    log_faults: list[CitewellError | None],
    ledger_faults: list[CitewellError | None],
    crashes: list[int],
) -> None:
    async def history() -> None:
        log = MemoryLog(sizes, Faults(log_faults))
        ledger = MemoryLedger(log, dead, Faults(ledger_faults))
        for steps in crashes:  # each worker dies after some iterations; the next takes over
            await run_until(worker_on(log, ledger, Naps()), lambda: log.done, steps)
        await run_until(worker_on(log, ledger, Naps()), lambda: log.done)
        assert log.done
        assert not log.lost, "acknowledged, but neither effective nor dead"
        everything = {record.position for records in log.records for record in records}
        assert set(log.letters) == {position for position in everything if position.offset in dead}
        assert log.effective == everything - set(log.letters)
        for partition in range(len(sizes)):
            own = [position for position in ledger.first_applied if position.partition == partition]
            assert own == sorted(own)
        assert log.members == 0

    asyncio.run(history())


async def test_a_partition_that_fails_holds_up_no_other() -> None:
    log = MemoryLog([3, 3], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults()), Naps()
    whole = ledger.apply

    async def apply(records: Sequence[Record]) -> list[Verdict]:
        if records[0].position.partition == 0 and len(naps.seconds) < 6:
            raise Unavailable("gone")
        return await whole(records)

    ledger.apply = apply  # type: ignore[method-assign]
    await run_until(worker_on(log, ledger, naps), lambda: log.committed[1] == 3)
    assert log.committed[0] == 0
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done


async def test_pauses_double_up_to_the_longest() -> None:
    log = MemoryLog([1], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults([Unavailable("gone")] * 6)), Naps()
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert naps.seconds == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


async def test_a_batch_that_fails_for_a_reason_of_its_own_is_halved_until_the_rest_passes() -> None:
    log = MemoryLog([8], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults()), Naps()
    whole = ledger.apply

    async def apply(records: Sequence[Record]) -> list[Verdict]:
        if any(record.position.offset == 3 for record in records) and len(naps.seconds) < 20:
            raise Internal("a defect that one event meets")
        return await whole(records)

    ledger.apply = apply  # type: ignore[method-assign]
    await run_until(worker_on(log, ledger, naps), lambda: log.committed[0] == 3)
    assert log.committed == [3]
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done


@pytest.mark.parametrize("place", [0, 5, 11])
async def test_an_event_that_always_takes_too_long_becomes_a_dead_letter(place: int) -> None:
    log = MemoryLog([12], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults()), Naps()
    whole, tried = ledger.apply, list[int]()

    async def apply(records: Sequence[Record]) -> list[Verdict]:
        if any(record.position.offset == place for record in records):
            tried.append(len(records))
            raise ApplyTimedOut("too long")
        return await whole(records)

    ledger.apply = apply  # type: ignore[method-assign]
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done
    assert not log.lost
    assert tried == [4, 1, 1, 1]  # once in a batch, then alone as often as the pace allows
    [letter] = log.letters.values()
    assert (letter.record.position.offset, letter.reason) == (place, "APPLY_TIMEOUT")
    assert (letter.event_id, letter.paper_id) == (f"event-0/{place}", "paper")
    assert len(log.effective) == 11


async def test_an_outage_of_the_ledger_makes_no_dead_letter() -> None:
    log = MemoryLog([6], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults([DeadlineExceeded("black hole")] * 50)), Naps()
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done
    assert not log.letters


async def test_a_slow_event_that_succeeds_in_the_end_is_applied() -> None:
    log = MemoryLog([3], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults([ApplyTimedOut("slow")] * 3)), Naps()
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done
    assert not log.letters
    assert ledger.batches == [1, 1, 1]


async def test_it_says_when_only_an_operator_can_help_and_goes_on_by_itself() -> None:
    log = MemoryLog([2], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults([FailedPrecondition("the ledger is of another log")])), Naps()
    worker = worker_on(log, ledger, naps)
    told: list[str] = []

    async def nap(seconds: float) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            worker.check()
        told.append(caught.value.message)

    worker._sleep = nap
    await run_until(worker, lambda: log.done)
    assert told == ["the worker stands still: the ledger is of another log"]
    worker.check()


async def test_partitions_fetch_small_batches_at_the_same_times() -> None:
    now = NOW
    fetched: list[datetime] = []

    async def nap(seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)
        fetched.append(now)
        now += timedelta(seconds=0.07)  # applying takes some time as well
        await asyncio.sleep(0)

    log = MemoryLog([3, 2], Faults())
    pace = replace(PACE, gather_seconds=0.5)
    ledger = MemoryLedger(log, frozenset(), Faults())
    await run_until(Worker(log, ledger, "g", pace, now=lambda: now, sleep=nap), lambda: len(fetched) == 2)
    assert [round(at.timestamp() % 0.5, 6) for at in fetched] == [0.0, 0.0]


async def test_what_is_dead_stays_dead_when_it_comes_again() -> None:
    log = MemoryLog([3], Faults())
    ledger = MemoryLedger(log, frozenset({1}), Faults())
    worker = worker_on(log, ledger, Naps())
    first = [Outcome.APPLIED, Outcome.DEAD, Outcome.APPLIED]
    assert await worker.deliver(log.records[0]) == first
    ledger.dead = frozenset()  # it could be applied now
    log.recorded_dead.clear()
    assert await worker.deliver(log.records[0]) == [Outcome.DUPLICATE, Outcome.DEAD, Outcome.DUPLICATE]
    assert log.recorded_dead == {log.records[0][1].position}
    assert await worker.deliver(log.records[0][1:2]) == [Outcome.DEAD]


async def test_a_defect_of_ours_is_retried_too() -> None:
    log = MemoryLog([2], Faults())
    ledger, naps = MemoryLedger(log, frozenset(), Faults()), Naps()
    whole = ledger.apply

    async def apply(records: Sequence[Record]) -> list[Verdict]:
        if not naps.seconds:
            raise KeyError("surprise")
        return await whole(records)

    ledger.apply = apply  # type: ignore[method-assign]
    await run_until(worker_on(log, ledger, naps), lambda: log.done)
    assert log.done
