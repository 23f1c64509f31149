"""The event log on Kafka: an idempotent producer, one topic of events that never expires, one of dead letters.

The log's id is its topic's id. A topic that is deleted and made again has another id.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError

from citewell.ingestion.logs.event_log import READ_BYTES, DeadLetter, LogBroken, PartitionState, Record, without_value
from citewell.ingestion.logs.kafka.calls import (
    BlockingCalls,
    GiveUp,
    end_process,
    in_our_words,
    patiently,
    translated,
)
from citewell.ingestion.logs.kafka.dead_letters import DeadLetters, headers_of
from citewell.ingestion.logs.kafka.member import KafkaMember
from citewell.ingestion.logs.kafka.reader import KafkaReader
from citewell.ingestion.logs.kafka.settings import LINGER_MILLISECONDS, KafkaSettings, milliseconds
from citewell.ingestion.logs.waiting import Waiting
from citewell.runtime.errors import InvalidField
from citewell.runtime.telemetry import logger
from citewell.scholarly.positions import LogPosition

T = TypeVar("T")

BATCH_BYTES = 1 << 20
"""Larger than the client's default, which an event with vectors exceeds: each would be a request of its own."""
MOST_BLOCKED_MILLISECONDS = 1_000
"""How long an append, and those queued behind it, wait for a broker to be found."""


class KafkaLog:
    """One topic and its dead letters."""

    kind = "kafka"

    def __init__(
        self, settings: KafkaSettings, give_up: GiveUp = end_process, most_waiting_bytes: int = 64 << 20
    ) -> None:
        self._settings, self._give_up = settings, give_up
        self._topic, self._dead_topic = settings.topic, settings.dead_letter_topic
        self._log_id = ""
        self._partitions: list[TopicPartition] = []
        self._waiting = Waiting(most_waiting_bytes)
        self._sending = ThreadPoolExecutor(1, thread_name_prefix="kafka-send")
        self._calls = BlockingCalls("kafka-read", settings.stuck_seconds, give_up)
        self._producer: Any = None
        self._admin: Any = None
        self._reader: KafkaReader
        self._dead: DeadLetters
        self._open: list[Any] = []
        """The clients to be closed in the end, except the producer."""

    @property
    def log_id(self) -> str:
        return self._log_id

    async def start(self) -> None:
        await self._calls.run(self._connect)

    def _connect(self) -> None:
        settings, client = self._settings, self._settings.client()
        try:
            self._reader = KafkaReader(settings, self._record)
            self._open.append(self._reader)
            self._dead = DeadLetters(self._dead_topic, self._reader)
            self._admin = KafkaAdminClient(**client)
            self._open.append(self._admin)
            described = {topic["name"]: topic for topic in self._admin.describe_topics([self._topic, self._dead_topic])}
            for name in (self._topic, self._dead_topic):
                if not described.get(name, {}).get("partitions"):
                    raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        except BaseException:
            self._close_clients()
            raise
        self._log_id = _identity(described[self._topic])
        self._partitions = [
            TopicPartition(self._topic, number) for number in range(len(described[self._topic]["partitions"]))
        ]
        self._producer = self._new_producer()
        # Load the topics' metadata now, so that the first append does not wait for it.
        for topic in (self._topic, self._dead_topic):
            patiently(partial(self._producer.partitions_for, topic), settings.request_seconds)

    def _new_producer(self) -> Any:
        settings = self._settings
        return KafkaProducer(
            **settings.client(),
            enable_idempotence=True,
            acks="all",
            linger_ms=LINGER_MILLISECONDS,
            batch_size=BATCH_BYTES,
            delivery_timeout_ms=milliseconds(settings.delivery_seconds),
            max_block_ms=MOST_BLOCKED_MILLISECONDS,
            max_request_size=settings.most_message_megabytes << 20,
        )

    async def stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._sending, self._close_producer)
        await self._calls.run(self._close_clients)
        self._calls.close()
        self._sending.shutdown(wait=False)

    def _close_producer(self) -> None:
        if self._producer is not None:
            try:
                self._producer.close(timeout=self._settings.request_seconds)
            except KafkaTimeoutError:
                _abandon(self._producer)

    def _close_clients(self) -> None:
        while self._open:
            with suppress(KafkaError):
                self._open.pop().close()

    # -- writing

    async def append(self, key: str, value: bytes, headers: Mapping[str, str]) -> LogPosition:
        encoded = [(name, text.encode()) for name, text in headers.items()]
        sent = await self._send(self._topic, key.encode(), value, encoded)
        return LogPosition(self._log_id, sent.partition, sent.offset)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await self._calls.run(lambda: patiently(question, self._settings.request_seconds))

    async def _send(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
        """Sends a record. Returns its metadata once it is durable."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        # The producer may hold a record for longer than its publisher waits: it is counted until Kafka has answered.
        leave = self._waiting.admit(len(value))

        def settle(result: Any, error: BaseException | None = None) -> None:
            leave()
            if not answer.done():
                answer.set_exception(error) if error else answer.set_result(result)

        def send() -> Any:
            producer = self._producer
            sent = producer.send(topic, value, key=key, headers=headers)
            sent.add_callback(lambda result: loop.call_soon_threadsafe(settle, result))
            sent.add_errback(lambda error: loop.call_soon_threadsafe(settle, None, error))
            return producer

        sending = loop.run_in_executor(self._sending, send)
        sending.add_done_callback(lambda done: leave() if done.exception() else None)
        try:
            producer = await in_our_words(asyncio.shield(sending))
        except BaseException:
            answer.cancel()  # nobody waits for it any more
            raise
        try:
            async with asyncio.timeout(self._settings.delivery_seconds + self._settings.request_seconds):
                return await answer
        except (KafkaError, TimeoutError) as error:
            leave()
            await loop.run_in_executor(self._sending, self._replace, producer)
            raise translated(error) from error

    def _replace(self, producer: Any) -> None:
        """Replaces a producer after a failure: its sequence number is lost, so later records would fail too."""
        if producer is self._producer:
            self._producer = self._new_producer()
            _abandon(producer)

    # -- reading

    async def partitions(self, group: str) -> list[PartitionState]:
        def ask() -> list[PartitionState]:
            self._require_same_topic()
            first = self._offsets(OffsetSpec.EARLIEST)
            end = self._offsets(OffsetSpec.LATEST)
            committed = self._admin.list_group_offsets({group: self._partitions})[group]
            return [
                PartitionState(
                    each.partition,
                    first[each],
                    end[each],
                    committed[each].offset if each in committed and committed[each].offset >= 0 else first[each],
                )
                for each in self._partitions
            ]

        return await self._ask(ask)

    def _require_same_topic(self) -> None:
        [described] = self._admin.describe_topics([self._topic])
        if _identity(described) != self._log_id:
            raise LogBroken(f"the topic {self._topic!r} was replaced: it was {self._log_id}, is {_identity(described)}")

    def _offsets(self, spec: Any, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        found = self._admin.list_partition_offsets(dict.fromkeys(partitions or self._partitions, spec))
        return {each: int(at.offset) for each, at in found.items()}

    async def read(self, partition: int, first: int, end: int, most: int, most_bytes: int = READ_BYTES) -> list[Record]:
        return await self._ask(lambda: self._read(TopicPartition(self._topic, partition), first, end, most, most_bytes))

    def _read(self, place: TopicPartition, first: int, end: int, most: int, most_bytes: int) -> list[Record]:
        if first < (earliest := self._reader.first(place)):
            raise LogBroken(f"{place.topic} partition {place.partition} begins at {earliest}: {first} is gone")
        records: list[Record] = []
        for each in self._reader.records(place, first, min(end, self._reader.end(place))):
            record = self._record(each)
            most_bytes -= len(record.value)
            if records and most_bytes < 0:
                break
            records.append(record)
            if len(records) == most:
                break
        return records

    def _record(self, record: Any) -> Record:
        return Record(
            LogPosition(self._log_id, record.partition, record.offset),
            (record.key or b"").decode(errors="replace"),
            record.value or b"",
            {name: (text or b"").decode(errors="replace") for name, text in record.headers},
            datetime.fromtimestamp(record.timestamp / 1000, UTC),
        )

    async def offset_at(self, partition: int, when: datetime) -> int:
        place = TopicPartition(self._topic, partition)

        def ask() -> int:
            found = self._offsets(max(0, math.ceil(when.timestamp() * 1000)), place)[place]
            return found if found >= 0 else self._offsets(OffsetSpec.LATEST, place)[place]

        return await self._ask(ask)

    async def join(self, group: str) -> KafkaMember:
        member = KafkaMember(self._settings, group, self._record, self._give_up)
        await member.start()
        return member

    # -- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        positions = await self._ask(self._dead.positions)
        await asyncio.gather(*(self._bury(each) for each in letters if each.record.position not in positions))

    async def _bury(self, letter: DeadLetter) -> None:
        key, value, headers = letter.record.key.encode(), letter.record.value, headers_of(letter)
        try:
            await self._send(self._dead_topic, key, value, headers)
        except InvalidField:  # too large with the headers that a letter adds to its record
            logger.warning("dead letter without its value", position=str(letter.record.position), size=len(value))
            await self._send(self._dead_topic, key, b"", headers)

    async def dead_letters(self, after: LogPosition | None, most: int) -> list[DeadLetter]:
        def read() -> list[DeadLetter]:
            later = sorted(position for position in self._dead.positions() if after is None or position > after)[:most]
            letters = self._dead.read(later)
            return [without_value(letters[position]) for position in later]

        return await self._ask(read)

    async def find_dead_letters(self, positions: Sequence[LogPosition]) -> list[DeadLetter]:
        def find() -> list[DeadLetter]:
            known = self._dead.positions()
            letters = self._dead.read([position for position in positions if position in known])
            return [letters[position] for position in positions if position in letters]

        return await self._ask(find)

    async def count_dead_letters(self) -> int:
        return len(await self._ask(self._dead.positions))


def _abandon(producer: Any) -> None:
    """Closes a producer without sending what it holds. close(0) alone would return before it has closed."""
    producer._sender.force_close()
    with suppress(KafkaTimeoutError):
        producer.close(timeout=1)


def _identity(described: Mapping[str, Any]) -> str:
    return str(described["topic_id"]).replace("-", "")
