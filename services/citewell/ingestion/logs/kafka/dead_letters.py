"""The dead letters of a log on Kafka: a topic with one partition, in which the first letter for a position counts.

A letter is its record with more headers. Which letters there are is kept in memory, as their offsets by the positions
of their records; the letters themselves are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from kafka import TopicPartition

from citewell.ingestion.logs.event_log import DeadLetter, Record
from citewell.runtime.telemetry import logger
from citewell.scholarly.positions import LogPosition

_PREFIX = "citewell-dead-"
"""Prefix of the headers that a dead letter has beside those of its record."""
_NEAR = 100
"""Letters no farther apart than this are read in one pass; it costs less than asking the broker again."""


class Reader(Protocol):
    """How this module reads its topic. All methods block."""

    def end(self, place: TopicPartition) -> int:
        """The offset of the next record to come."""

    def records(self, place: TopicPartition, first: int, end: int) -> Iterator[Any]:
        """Kafka's records of first ≤ offset < end, all of which exist."""

    def record(self, record: Any) -> Record:
        """Ours of Kafka's."""


class DeadLetters:
    """What the topic holds. All methods block, and belong to one thread."""

    def __init__(self, topic: str, reader: Reader) -> None:
        self._place, self._reader = TopicPartition(topic, 0), reader
        self._offsets: dict[LogPosition, int] = {}
        self._read_to = 0

    def positions(self) -> Mapping[LogPosition, int]:
        """The position of every record that has a letter by now, and the letter's offset. One request if none came."""
        end = self._reader.end(self._place)
        if self._read_to < end:
            for record in self._reader.records(self._place, self._read_to, end):
                letter = self._letter(record)
                if letter is not None:
                    self._offsets.setdefault(letter.record.position, record.offset)
                self._read_to = record.offset + 1
            self._read_to = end
        return self._offsets

    def read(self, positions: Iterable[LogPosition]) -> dict[LogPosition, DeadLetter]:
        """The letters of these positions, which have one."""
        wanted = {self._offsets[position] for position in positions}
        letters = {}
        for first, end in _passes(sorted(wanted)):
            for record in self._reader.records(self._place, first, end):
                if record.offset in wanted and (letter := self._letter(record)) is not None:
                    letters[letter.record.position] = letter
        return letters

    def _letter(self, record: Any) -> DeadLetter | None:
        """None for a record that somebody else wrote into the topic."""
        try:
            return _letter(self._reader.record(record))
        except (KeyError, ValueError) as error:
            logger.warning("no dead letter", topic=self._place.topic, offset=record.offset, error=repr(error))
            return None


def headers_of(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """A letter's headers: those of its record, and those that tell of its death."""
    position = letter.record.position
    told = {
        "log-id": position.log_id,
        "partition": str(position.partition),
        "offset": str(position.offset),
        "appended": letter.record.appended.isoformat(),
        "event-id": letter.event_id,
        "paper-id": letter.paper_id,
        "reason": letter.reason,
        "message": letter.message,
        "recorded": letter.recorded.isoformat(),
    }
    headers = {**letter.record.headers, **{_PREFIX + name: text for name, text in told.items()}}
    return [(name, text.encode()) for name, text in headers.items()]


def _letter(buried: Record) -> DeadLetter:
    """The letter in a record of the topic; KeyError or ValueError if there is none."""
    told = {name.removeprefix(_PREFIX): text for name, text in buried.headers.items() if name.startswith(_PREFIX)}
    headers = {name: text for name, text in buried.headers.items() if not name.startswith(_PREFIX)}
    position = LogPosition(told["log-id"], int(told["partition"]), int(told["offset"]))
    return DeadLetter(
        Record(position, buried.key, buried.value, headers, datetime.fromisoformat(told["appended"])),
        told["event-id"],
        told["paper-id"],
        told["reason"],
        told["message"],
        datetime.fromisoformat(told["recorded"]),
    )


def _passes(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First offset and end of each pass over the topic that reads these offsets, which are in order."""
    start = 0
    for number, offset in enumerate(offsets):
        if number + 1 == len(offsets) or offsets[number + 1] - offset > _NEAR:
            yield offsets[start], offset + 1
            start = number + 1
