"""A member of a Kafka consumer group.

A thread polls continuously and puts records into a buffer per partition. A partition whose buffer is full is paused.
Before a partition moves to another member, the rebalance waits for a bounded time until its fetched records are
committed. Only the event loop's thread changes state; the other threads send it messages.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)

from citewell.ingestion.logs.event_log import Claim, ClaimLost, LogBroken, Record
from citewell.ingestion.logs.kafka.calls import BlockingCalls, GiveUp, await_broker, translated
from citewell.ingestion.logs.kafka.settings import KafkaSettings, milliseconds
from citewell.runtime.errors import CitewellError, Unavailable
from citewell.runtime.telemetry import logger

POLL_SECONDS = 0.1
MOST_POLLED = 500
METADATA_MILLISECONDS = 30_000
FULL, FULL_BYTES = 500, 8 << 20
"""A partition is paused when so many records or bytes are buffered. One more poll may still add to them."""
REBALANCE_PAUSE_SECONDS = 0.1
COMMIT_ATTEMPTS = 30


class KafkaMember:
    """One member of `group`; `record` makes ours of Kafka's records."""

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        record: Callable[[Any], Record],
        give_up: GiveUp,
    ) -> None:
        self._settings, self._topic, self._record, self._give_up = settings, settings.topic, record, give_up
        self._group = group
        self._commits = BlockingCalls("kafka-commit", settings.stuck_seconds, give_up)
        self._held: dict[int, Claim] = {}
        self._leaving: set[int] = set()
        self._buffers: dict[int, deque[Record]] = {}
        self._told, self._heard = Counter[int](), Counter[int]()
        """Records that the poller sent to the event loop, and those that arrived there; the rest is on its way."""
        self._handed: dict[int, int] = {}
        """Offset after the last record that fetch returned, by partition."""
        self._done: dict[int, int] = {}
        """Committed offset as far as this member knows, by partition."""
        self._wanted: dict[int, int] = {}
        """Offset that commit was asked for, by partition."""
        self._broken: dict[int, str] = {}
        self._failed: CitewellError | None = None
        self._news = asyncio.Event()
        self._closing = threading.Event()
        self._polling_since: float | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._consumer = await self._commits.run(self._connected)
        self._poller = threading.Thread(target=self._poll_on, name="kafka-poll", daemon=True)
        self._poller.start()
        self._watch = asyncio.create_task(self._watch_poller())

    def _connected(self) -> Any:
        settings = self._settings
        consumer = KafkaConsumer(
            **settings.client(),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="none",  # an offset out of range is an error here, never a silent reset
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            metadata_max_age_ms=METADATA_MILLISECONDS,
            partition_assignment_strategy=[CooperativeStickyAssignor],
            session_timeout_ms=milliseconds(settings.session_seconds),
            heartbeat_interval_ms=milliseconds(settings.session_seconds / 5),
            max_poll_records=MOST_POLLED,
            max_partition_fetch_bytes=settings.most_message_megabytes << 20,
            fetch_max_bytes=2 * settings.most_message_megabytes << 20,
        )
        try:
            await_broker(consumer, settings.request_seconds)
            consumer.subscribe([self._topic], listener=_Listener(self))
            # A group leader without the topic's metadata would assign no partitions until its next refresh.
            if not consumer.partitions_for_topic(self._topic):
                raise UnknownTopicOrPartitionError(f"no topic {self._topic!r}")
        except BaseException:
            consumer.close(autocommit=False, timeout_ms=0)
            raise
        return consumer

    async def claims(self, known: frozenset[Claim]) -> frozenset[Claim]:
        while True:
            news = self._news
            if self._failed:
                raise self._failed
            if (held := frozenset(self._held.values())) != known:
                return held
            await news.wait()

    async def fetch(self, claim: Claim, most: int, most_bytes: int, wait_seconds: float) -> list[Record]:
        deadline = self._loop.time() + wait_seconds
        while True:
            news = self._news
            self._require(claim)
            if claim.partition in self._broken:
                raise LogBroken(self._broken[claim.partition])
            if claim.partition not in self._leaving and (records := self._take(claim.partition, most, most_bytes)):
                return records
            try:
                async with asyncio.timeout_at(deadline):
                    await news.wait()
            except TimeoutError:
                return []

    def _take(self, partition: int, most: int, most_bytes: int) -> list[Record]:
        buffer, records, size = self._buffers[partition], list[Record](), 0
        while buffer and len(records) < most:
            size += len(buffer[0].value)
            if records and size > most_bytes:
                break
            records.append(buffer.popleft())
        if records:
            self._handed[partition] = records[-1].position.offset + 1
            self._done.setdefault(partition, records[0].position.offset)
        return records

    async def commit(self, claim: Claim, offset: int) -> None:
        self._require(claim)
        self._wanted[claim.partition] = max(offset, self._wanted.get(claim.partition, 0))
        for _ in range(COMMIT_ATTEMPTS):
            self._require(claim)
            if offset <= self._done.get(claim.partition, 0):
                return  # committed together with another partition, or lower than what is committed
            wanted = {partition: end for partition, end in self._wanted.items() if end > self._done.get(partition, 0)}
            try:
                await self._commits.run(lambda wanted=wanted: self._commit(wanted))  # type: ignore[misc]
            except Unavailable as error:
                self._require(claim)
                if not isinstance(error.__cause__, RebalanceInProgressError):
                    raise
                await asyncio.sleep(REBALANCE_PAUSE_SECONDS)
            else:
                for partition, end in wanted.items():
                    self._done[partition] = max(end, self._done.get(partition, 0))
                self._notify()
        raise Unavailable(f"the group {self._group!r} has been rebalancing for too long to commit")

    def _commit(self, wanted: Mapping[int, int]) -> None:
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(end, "", -1) for partition, end in wanted.items()
        }
        self._consumer.commit(offsets, timeout_ms=milliseconds(self._settings.request_seconds))

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._poller.join, self._settings.stuck_seconds)
        if self._poller.is_alive():
            self._give_up("kafka-poll: the consumer does not close")
        self._watch.cancel()
        self._commits.close()

    def _require(self, claim: Claim) -> None:
        if self._held.get(claim.partition) != claim:
            raise ClaimLost(
                f"partition {claim.partition} belongs to another member by now", generation=claim.generation
            )
        if self._failed:
            raise self._failed

    # -- the poller's thread

    def _poll_on(self) -> None:
        try:
            while not self._closing.is_set():
                self._polling_since = time.monotonic()
                self._poll_once()
                self._polling_since = None
        except Exception as error:
            logger.error("the poller ended", group=self._group, error=repr(error))
            self._tell(self._fail, translated(error))
        finally:
            with suppress(KafkaError):
                self._consumer.close(autocommit=False, timeout_ms=milliseconds(self._settings.request_seconds))

    def _poll_once(self) -> None:
        full = {partition for partition, buffer in list(self._buffers.items()) if self._is_full(partition, buffer)}
        full |= set(self._broken)
        try:
            for held in self._consumer.assignment():
                if held.partition in full:
                    self._consumer.pause(held)
                else:
                    self._consumer.resume(held)
            polled = self._consumer.poll(timeout_ms=milliseconds(POLL_SECONDS))
        except NoOffsetForPartitionError as error:  # a new group starts at the earliest
            self._consumer.seek_to_beginning(*_partitions_in(error))
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            self._tell(self._break, [held.partition for held in _partitions_in(error)], str(error))
        except IllegalStateError:
            return  # a partition moved while it was being paused
        except KafkaError as error:
            if not error.retriable:
                raise
            self._closing.wait(POLL_SECONDS)
        else:
            for held, records in polled.items():
                self._told[held.partition] += len(records)
                self._tell(self._take_in, held.partition, [self._record(record) for record in records])

    def _is_full(self, partition: int, buffer: deque[Record]) -> bool:
        held = list(buffer)  # a copy, because the event loop takes records from it at the same time
        on_the_way = self._told[partition] - self._heard[partition]
        return len(held) + on_the_way >= FULL or sum(len(record.value) for record in held) >= FULL_BYTES

    def _tell(self, what: Callable[..., object], *said: object) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(what, *said)

    # -- the event loop's thread

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _take_in(self, partition: int, records: list[Record]) -> None:
        if partition in self._held:
            self._buffers[partition].extend(records)
            self._notify()
        self._heard[partition] += len(records)

    def _break(self, partitions: Iterable[int], why: str) -> None:
        for partition in partitions:
            self._broken[partition] = f"partition {partition} no longer holds the records that come next ({why})"
        self._notify()

    def _fail(self, error: CitewellError) -> None:
        self._failed = error
        self._notify()

    def _claim(self, partitions: Iterable[int], generation: int) -> None:
        for partition in partitions:
            self._forget(partition)
            self._held[partition] = Claim(partition, generation)
            self._buffers[partition] = deque()
        self._notify()

    def _forget(self, partition: int) -> None:
        for known in (self._held, self._buffers, self._handed, self._done, self._wanted, self._broken):
            known.pop(partition, None)
        self._leaving.discard(partition)

    async def _hand_over(self, partitions: frozenset[int], patience: float) -> None:
        """Drops the claims once all that was fetched is committed, or after `patience` seconds."""
        self._leaving |= partitions & self._held.keys()
        deadline = self._loop.time() + patience
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while any(
                    self._handed.get(each, 0) > self._done.get(each, 0) for each in partitions & self._held.keys()
                ):
                    await self._news.wait()
        for partition in partitions:
            self._forget(partition)
        self._notify()
        with suppress(CitewellError):
            await self._commits.run(lambda: None)  # a running commit must not finish under the next generation

    async def _watch_poller(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            since = self._polling_since
            if since is not None and time.monotonic() - since > self._settings.stuck_seconds:
                self._give_up(f"kafka-poll: a poll blocks for more than {self._settings.stuck_seconds:.0f} s")
                return


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Runs on the client's own event loop. Awaiting here delays the rebalance, but not the heartbeats."""

    def __init__(self, member: KafkaMember) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        generation = self._member._consumer.group_metadata().generation_id
        self._member._tell(self._member._claim, [each.partition for each in assigned], generation)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        closing = self._member._closing.is_set()
        await self._dropped(revoked, 0.0 if closing else self._member._settings.hand_over_seconds)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        await self._dropped(lost, 0.0)

    async def _dropped(self, partitions: Iterable[TopicPartition], patience: float) -> None:
        member = self._member
        over = time.monotonic() + patience + member._settings.request_seconds
        handed_over = asyncio.run_coroutine_threadsafe(
            member._hand_over(frozenset(each.partition for each in partitions), patience), member._loop
        )
        while not handed_over.done() and time.monotonic() < over:
            await member._consumer._net.sleep(0.02)  # the client's loop has no public way to wait


def _partitions_in(error: KafkaError) -> list[TopicPartition]:
    """The partitions that an error of the fetcher names."""
    return list(getattr(error, "divergent_offsets", None) or error.args[0])
