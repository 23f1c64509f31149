"""The event log as the domain sees it: durable records in partitions, consumer groups, dead letters.

Adapters: local/ (SQLite, one process) and kafka/. One contract suite for both: tests/contract/test_log.py.

A consumer pulls: each partition is claimed (`claims`), read (`fetch`) and acknowledged (`commit`) separately. Nothing
is fetched from a partition that waits. An adapter whose client pushes records (Kafka) pauses such a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from citewell.runtime.errors import CitewellError, FailedPrecondition
from citewell.scholarly.positions import LogPosition

READ_BYTES = 8 << 20
"""What one read of a range returns at most, if it is not told otherwise."""


@dataclass(frozen=True, slots=True)
class Record:
    """What was appended, where and when."""

    position: LogPosition
    key: str
    value: bytes
    headers: Mapping[str, str]
    appended: datetime
    """Aware, UTC; never goes back within a partition."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """First offset of a partition, offset of its next record, and the offset before which a group acknowledged all."""

    partition: int
    first_offset: int
    end_offset: int
    committed_offset: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can never be applied, whole, with the reason."""

    record: Record
    event_id: str
    paper_id: str
    reason: str
    message: str
    recorded: datetime


def without_value(letter: DeadLetter) -> DeadLetter:
    """The letter as it is listed: values may be large."""
    return replace(letter, record=replace(letter.record, value=b""))


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition as held by one member since one assignment; a later holder's claim has another generation."""

    partition: int
    generation: int


class ClaimLost(CitewellError):
    """The partition belongs to another member now. Drop the work: that member gets the records again."""

    default_reason = "CLAIM_LOST"


class LogBroken(FailedPrecondition):
    """The log was replaced, or no longer holds the next record. An operator must act."""

    default_reason = "LOG_BROKEN"


class Consumer(Protocol):
    """One member of a group. A partition belongs to one member at a time; new groups start at the earliest."""

    async def claims(self, known: frozenset[Claim]) -> frozenset[Claim]:
        """What this member holds, as soon as that differs from `known`.

        Before a claim is handed to another member, one whose fetched records are not all committed is given a short,
        bounded time in which `commit` still works.
        """

    async def fetch(self, claim: Claim, most: int, most_bytes: int, wait_seconds: float) -> list[Record]:
        """The records after those fetched last (at first: those not committed), in order; empty when none came in time.

        At least one if there is one, whatever its size. Raises ClaimLost, LogBroken when the next offset is out of
        range or the log was replaced (never a silent reset), Unavailable when the log does not answer.
        """

    async def commit(self, claim: Claim, offset: int) -> None:
        """Acknowledges every record before `offset`, durably; never goes back. Raises ClaimLost, Unavailable."""

    async def close(self) -> None:
        """Leaves the group; others take over at once."""


class EventLog(Protocol):
    """One log and its dead letters. All methods may raise Unavailable; writes also Overloaded or StorageFull."""

    @property
    def kind(self) -> str:
        """ "local" or "kafka"."""

    @property
    def log_id(self) -> str:
        """Another one whenever offsets no longer mean the same records."""

    async def start(self) -> None:
        """Opens the log, so that everything else here may be called."""

    async def stop(self) -> None:
        """Finishes what was accepted and closes."""

    async def append(self, key: str, value: bytes, headers: Mapping[str, str]) -> LogPosition:
        """Answers when the record is durable. The same key always goes to the same partition, in order."""

    async def partitions(self, group: str) -> list[PartitionState]:
        """Every partition's state, as a group sees it, in order."""

    async def read(self, partition: int, first: int, end: int, most: int, most_bytes: int = READ_BYTES) -> list[Record]:
        """The records of first ≤ offset < end, in order, as many as both limits allow but at least one if there is one.

        Belongs to no group. LogBroken if they are gone.
        """

    async def offset_at(self, partition: int, when: datetime) -> int:
        """The first offset appended at `when` or later; the end offset if there is none."""

    async def join(self, group: str) -> Consumer:
        """A new member of the group."""

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Answers when the dead letters are durable. A position has one letter: the first stays."""

    async def dead_letters(self, after: LogPosition | None, most: int) -> list[DeadLetter]:
        """Up to `most`, in order of their source positions, after that one. Their records' values are left out."""

    async def find_dead_letters(self, positions: Sequence[LogPosition]) -> list[DeadLetter]:
        """Those of these source positions that are dead letters, in the order asked."""

    async def count_dead_letters(self) -> int:
        """How many there are."""
