"""The contract of every event log, and the additional contract of logs with several members.

To test an adapter, add a function to ADAPTERS: given the test's request it yields a factory that opens the same log any
number of times. SHARED names the adapters that several processes may use at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from citewell.ingestion.logs.event_log import (
    Claim,
    ClaimLost,
    Consumer,
    DeadLetter,
    EventLog,
    LogBroken,
    LogPosition,
    Record,
    without_value,
)
from citewell.ingestion.logs.kafka.log import KafkaLog
from citewell.ingestion.logs.local.log import LocalLog
from tests.servers.kafka_topics import fresh_topics

PARTITIONS = 3
PATIENCE = 20.0
OpenLog = Callable[[], Awaitable[EventLog]]


@asynccontextmanager
async def local(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[], EventLog]]:
    folder: Path = request.getfixturevalue("tmp_path")
    yield lambda: LocalLog(folder / "log.sqlite", partitions=PARTITIONS)


@asynccontextmanager
async def kafka(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[], EventLog]]:
    settings = fresh_topics(request.getfixturevalue("kafka_broker"), PARTITIONS)
    yield lambda: KafkaLog(settings, give_up=pytest.fail)


ADAPTERS = {"local": local, "kafka": kafka}
SHARED = ["kafka"]


@pytest.fixture(params=ADAPTERS)
async def open_log(request: pytest.FixtureRequest) -> AsyncIterator[OpenLog]:
    """Opens the log; stops the one that was opened before."""
    async with ADAPTERS[request.param](request) as make:
        last: list[EventLog] = []

        async def stop() -> None:
            if last:
                await last.pop().stop()

        async def opened() -> EventLog:
            await stop()
            last.append(make())
            await last[0].start()
            return last[0]

        try:
            yield opened
        finally:
            await stop()


@pytest.fixture
async def log(open_log: OpenLog) -> EventLog:
    return await open_log()


@pytest.fixture(params=SHARED)
async def two_logs(request: pytest.FixtureRequest) -> AsyncIterator[tuple[EventLog, EventLog]]:
    """The same log opened twice, as by two processes."""
    async with ADAPTERS[request.param](request) as make, AsyncExitStack() as ends:
        logs = make(), make()
        for log in logs:
            await log.start()
            ends.push_async_callback(log.stop)
        yield logs


async def append(log: EventLog, *values: int, key: str = "a") -> list[LogPosition]:
    return [await log.append(key, b"%d" % value, {}) for value in values]


async def claimed(consumer: Consumer, count: int) -> frozenset[Claim]:
    """The member's claims, once it has this many."""
    async with asyncio.timeout(PATIENCE):
        held: frozenset[Claim] = frozenset()
        while len(held) != count:
            held = await consumer.claims(held)
        return held


async def shared_out(*members: Consumer) -> list[frozenset[Claim]]:
    """The partitions of each member, once every member has some and every partition has one owner."""
    held = [frozenset[Claim]() for _ in members]
    async with asyncio.timeout(PATIENCE):
        while not all(held) or sorted(claim.partition for each in held for claim in each) != list(range(PARTITIONS)):
            news = [asyncio.create_task(member.claims(known)) for member, known in zip(members, held, strict=True)]
            done, waiting = await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            held = [task.result() if task in done else known for task, known in zip(news, held, strict=True)]
    return held


async def claim_of(consumer: Consumer, partition: int) -> Claim:
    return next(claim for claim in await claimed(consumer, PARTITIONS) if claim.partition == partition)


async def fetched(consumer: Consumer, claim: Claim, count: int) -> list[bytes]:
    """This many values, or fewer if no more come."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE):
        while len(records) < count:
            records += await consumer.fetch(claim, count - len(records), 1 << 20, PATIENCE)
    return [record.value for record in records]


async def test_what_is_appended_is_read_back_whole(log: EventLog) -> None:
    position = await log.append("key é", b"\x00\xff", {"traceparent": "00-1", "event-id": "e"})
    [record] = await log.read(position.partition, position.offset, position.offset + 1, 10)
    assert (record.position, record.key, record.value) == (position, "key é", b"\x00\xff")
    assert dict(record.headers) == {"traceparent": "00-1", "event-id": "e"}
    assert abs(record.appended - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_key_stays_in_its_partition_and_in_order(log: EventLog) -> None:
    positions = await asyncio.gather(*(log.append(f"k{i % 7}", b"%d" % i, {}) for i in range(70)))
    assert len(set(positions)) == 70
    for key in range(7):
        own = positions[key::7]
        assert len({position.partition for position in own}) == 1
        assert own == sorted(own)
    assert len({position.partition for position in positions}) > 1
    for state in await log.partitions("g"):
        records = await log.read(state.partition, state.first_offset, state.end_offset, 100)
        assert [record.position.offset for record in records] == list(range(state.first_offset, state.end_offset))


async def test_a_reopened_log_is_the_same_log(open_log: OpenLog) -> None:
    first = await open_log()
    [position] = await append(first, 1)
    again = await open_log()
    assert (again.kind, again.log_id) == (first.kind, first.log_id) == (first.kind, position.log_id)
    [record] = await again.read(position.partition, position.offset, position.offset + 1, 1)
    assert record.value == b"1"
    [later] = await append(again, 2)
    assert later.offset == position.offset + 1


async def test_ranges_of_offsets(log: EventLog) -> None:
    positions = await append(log, *range(10))
    partition, first = positions[0].partition, positions[0].offset

    async def values(start: int, end: int, most: int) -> list[int]:
        return [int(record.value) for record in await log.read(partition, first + start, first + end, most)]

    assert await values(2, 5, 100) == [2, 3, 4]
    assert await values(2, 9, 3) == [2, 3, 4]
    assert await values(8, 99, 100) == [8, 9]
    assert await values(10, 99, 100) == []
    assert await values(5, 5, 100) == []


async def test_ranges_are_bounded_in_bytes_but_hold_a_large_record(log: EventLog) -> None:
    [first, *_] = [await log.append("a", bytes(size), {}) for size in (300, 300, 5000, 300)]
    sizes, at, end = list[list[int]](), first.offset, first.offset + 4
    while records := await log.read(first.partition, at, end, 10, 700):
        sizes.append([len(record.value) for record in records])
        at = records[-1].position.offset + 1
    assert sizes == [[300, 300], [5000], [300]]


async def test_ranges_of_time(log: EventLog) -> None:
    [first] = await append(log, 1)
    [early] = await log.read(first.partition, first.offset, first.offset + 1, 1)
    assert await log.offset_at(first.partition, early.appended) == first.offset
    assert await log.offset_at(first.partition, early.appended - timedelta(days=1)) == first.offset
    assert await log.offset_at(first.partition, early.appended + timedelta(days=1)) == first.offset + 1


async def test_partition_states(log: EventLog) -> None:
    positions = await append(log, 1, 2, 3)
    consumer = await log.join("g")
    claim = await claim_of(consumer, positions[0].partition)
    assert await fetched(consumer, claim, 2) == [b"1", b"2"]
    await consumer.commit(claim, positions[1].offset)
    states = await log.partitions("g")
    assert [state.partition for state in states] == list(range(PARTITIONS))
    state = states[claim.partition]
    assert state.end_offset - state.first_offset == 3
    assert state.committed_offset == positions[1].offset
    assert (await log.partitions("other"))[claim.partition].committed_offset == state.first_offset
    await consumer.close()


async def test_a_new_group_starts_at_the_earliest_record(log: EventLog) -> None:
    [position, *_] = await append(log, 1, 2, 3)
    for group in ("g", "another"):
        consumer = await log.join(group)
        claim = await claim_of(consumer, position.partition)
        assert await fetched(consumer, claim, 3) == [b"1", b"2", b"3"]
        await consumer.commit(claim, position.offset + 3)
        await consumer.close()


async def test_the_next_member_goes_on_where_the_last_committed(open_log: OpenLog) -> None:
    log = await open_log()
    [position, *_] = await append(log, 1, 2, 3, 4)
    consumer = await log.join("g")
    claim = await claim_of(consumer, position.partition)
    assert await fetched(consumer, claim, 3) == [b"1", b"2", b"3"]
    await consumer.commit(claim, position.offset + 2)
    await consumer.commit(claim, position.offset + 1)  # never decreases
    await consumer.close()
    successor = await (await open_log()).join("g")
    claim = await claim_of(successor, position.partition)
    assert await fetched(successor, claim, 2) == [b"3", b"4"]
    await successor.close()


async def test_fetch_is_bounded_and_waits(log: EventLog) -> None:
    [position, *_] = await append(log, *range(6))
    consumer = await log.join("g")
    claim = await claim_of(consumer, position.partition)
    assert len(await consumer.fetch(claim, 2, 1 << 20, PATIENCE)) <= 2
    await fetched(consumer, claim, 4)
    assert await consumer.fetch(claim, 9, 1 << 20, 0.05) == []
    waiting = asyncio.create_task(consumer.fetch(claim, 9, 1 << 20, PATIENCE))
    await append(log, 7)
    assert [record.value for record in await waiting] == [b"7"]
    await consumer.close()


async def test_fetch_is_bounded_in_bytes_but_takes_a_large_record(log: EventLog) -> None:
    [position, *_] = [await log.append("a", bytes(size), {}) for size in (300, 300, 300, 5000)]
    consumer = await log.join("g")
    claim = await claim_of(consumer, position.partition)
    sizes = []
    while sum(sizes) < 5900:
        records = await consumer.fetch(claim, 10, 700, PATIENCE)
        assert len(records) == 1 or sum(len(record.value) for record in records) <= 700
        sizes += [len(record.value) for record in records]
    assert sizes == [300, 300, 300, 5000]
    await consumer.close()


async def test_a_partition_nobody_fetches_from_holds_up_no_other(log: EventLog) -> None:
    positions = await asyncio.gather(*(log.append(f"k{i}", b"x", {}) for i in range(60)))
    consumer = await log.join("g")
    claims = sorted(await claimed(consumer, PARTITIONS), key=lambda claim: claim.partition)
    for claim in claims[1:]:
        expected = sum(position.partition == claim.partition for position in positions)
        assert len(await fetched(consumer, claim, expected)) == expected
    await consumer.close()


async def test_members_share_the_partitions_and_take_over(two_logs: tuple[EventLog, EventLog]) -> None:
    first, second = two_logs
    [position, *_] = await append(first, 1, 2)
    one = await first.join("g")
    await claimed(one, PARTITIONS)
    two = await second.join("g")
    await shared_out(one, two)
    await two.close()
    held = await claimed(one, PARTITIONS)
    claim = next(claim for claim in held if claim.partition == position.partition)
    assert await fetched(one, claim, 2) == [b"1", b"2"]
    await one.close()


async def test_a_lost_claim_can_neither_fetch_nor_commit(two_logs: tuple[EventLog, EventLog]) -> None:
    first, second = two_logs
    for i in range(30):
        await first.append(f"k{i}", b"x", {})
    one = await first.join("g")
    before = await claimed(one, PARTITIONS)
    two = await second.join("g")
    _, taken = await shared_out(one, two)
    for claim in before:
        if claim.partition in {other.partition for other in taken}:
            with pytest.raises(ClaimLost):
                await one.fetch(claim, 1, 1 << 20, 0.05)
            with pytest.raises(ClaimLost):
                await one.commit(claim, 1)
            state = (await first.partitions("g"))[claim.partition]
            assert state.committed_offset == state.first_offset
    await two.close()
    await one.close()


async def test_work_in_flight_may_be_committed_before_the_partition_moves(two_logs: tuple[EventLog, EventLog]) -> None:
    first, second = two_logs
    positions = [await first.append(f"k{i}", b"x", {}) for i in range(30)]
    one = await first.join("g")
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for position in positions:
        counts[position.partition] += 1
    held = await claimed(one, PARTITIONS)
    for claim in held:
        await fetched(one, claim, counts[claim.partition])
    joining = asyncio.create_task(second.join("g"))
    for claim in held:
        await one.commit(claim, counts[claim.partition])
    two = await joining
    async with asyncio.timeout(PATIENCE):
        while not (taken := await two.claims(frozenset())):
            pass
    for claim in taken:
        assert await two.fetch(claim, 9, 1 << 20, 0.05) == []
    await two.close()
    await one.close()


async def test_a_closed_member_can_neither_fetch_nor_commit(log: EventLog) -> None:
    [position] = await append(log, 1)
    consumer = await log.join("g")
    claim = await claim_of(consumer, position.partition)
    await consumer.close()
    for call in (consumer.fetch(claim, 1, 1 << 20, 0.05), consumer.commit(claim, 1)):
        with pytest.raises(ClaimLost):
            await call
    assert (await log.partitions("g"))[position.partition].committed_offset == position.offset


async def test_an_offset_beyond_the_log_is_never_reset(open_log: OpenLog) -> None:
    log = await open_log()
    [position] = await append(log, 1)
    consumer = await log.join("g")
    claim = await claim_of(consumer, position.partition)
    await fetched(consumer, claim, 1)
    await consumer.commit(claim, position.offset + 5)  # as if a shorter log had replaced this one
    await consumer.close()
    successor = await log.join("g")
    claim = await claim_of(successor, position.partition)
    with pytest.raises(LogBroken):
        await fetched(successor, claim, 1)
    assert (await log.partitions("g"))[position.partition].committed_offset == position.offset + 5
    await successor.close()


def letter(record: Record, reason: str = "REVISION_REUSED") -> DeadLetter:
    return DeadLetter(record, f"event-{record.position.offset}", "paper", reason, "words", record.appended)


async def records_of(log: EventLog, count: int) -> list[Record]:
    [first, *_] = await append(log, *range(count))
    return await log.read(first.partition, first.offset, first.offset + count, count)


async def test_one_dead_letter_for_a_source_position(open_log: OpenLog) -> None:
    log = await open_log()
    [record] = await records_of(log, 1)
    await log.bury([letter(record)])
    await log.bury([letter(record, "SAID_LATER")])
    assert await log.find_dead_letters([record.position]) == [letter(record)]
    again = await open_log()
    assert await again.find_dead_letters([record.position]) == [letter(record)]
    assert await again.count_dead_letters() == 1


async def test_dead_letters_are_listed_in_pages(log: EventLog) -> None:
    records = await records_of(log, 5)
    for some in ((records[3], records[0]), (records[4], records[1], records[2])):
        await log.bury([letter(record) for record in some])
    listed: list[DeadLetter] = []
    while page := await log.dead_letters(listed[-1].record.position if listed else None, 2):
        assert len(page) <= 2
        listed += page
    assert listed == [without_value(letter(record)) for record in records]


async def test_dead_letters_are_found_by_their_source(log: EventLog) -> None:
    records = await records_of(log, 3)
    await log.bury([letter(record) for record in records[:2]])
    asked = [record.position for record in reversed(records)]
    assert await log.find_dead_letters(asked) == [letter(records[1]), letter(records[0])]
