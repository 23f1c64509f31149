"""Reads Kafka's topics outside of any consumer group. All methods block, and belong to one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from citewell.ingestion.logs.event_log import Record
from citewell.ingestion.logs.kafka.calls import await_broker
from citewell.ingestion.logs.kafka.settings import KafkaSettings, milliseconds

MOST_POLLED = 500


class KafkaReader:
    """A client without a group. `record` makes ours of Kafka's records."""

    def __init__(self, settings: KafkaSettings, record: Callable[[Any], Record]) -> None:
        self._request_milliseconds = milliseconds(settings.request_seconds)
        self.record = record
        self._consumer: Any = KafkaConsumer(
            **settings.client(),
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=settings.most_message_megabytes << 20,
        )
        try:
            await_broker(self._consumer, settings.request_seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(KafkaError):
            self._consumer.close()

    def first(self, place: TopicPartition) -> int:
        """The offset of the oldest record that is kept."""
        return int(self._consumer.beginning_offsets([place])[place])

    def end(self, place: TopicPartition) -> int:
        """The offset of the next record to come."""
        return int(self._consumer.end_offsets([place])[place])

    def records(self, place: TopicPartition, first: int, end: int) -> Iterator[Any]:
        """Kafka's records of first ≤ offset < end, all of which exist. Holds one poll's worth of them."""
        self._consumer.assign([place])
        self._consumer.seek(place, first)
        waits = 0
        while (at := self._consumer.position(place)) < end:
            polled = self._consumer.poll(self._request_milliseconds, max_records=min(end - at, MOST_POLLED))
            if not polled and (waits := waits + 1) > 1:
                raise KafkaTimeoutError(f"{place.topic} partition {place.partition} does not deliver {at}")
            yield from (record for record in polled.get(place, ()) if record.offset < end)
