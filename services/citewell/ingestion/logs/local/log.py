"""A durable event log in one SQLite file: the embedded set-up's Kafka. Records never expire.

Appends that wait together share one transaction and one fsync (group commit). One process owns the file, by a lock file
beside it, and a consumer group has one member. Several workers need Kafka.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

from citewell.ingestion.logs.event_log import READ_BYTES, DeadLetter, LogBroken, PartitionState, Record
from citewell.ingestion.logs.local.consumer import LocalConsumer
from citewell.ingestion.logs.local.database import Database
from citewell.ingestion.logs.waiting import Waiting
from citewell.runtime.errors import FailedPrecondition
from citewell.runtime.owner_lock import OwnerLock
from citewell.scholarly.positions import LogPosition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (id TEXT NOT NULL, partitions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    key TEXT NOT NULL, value BLOB NOT NULL, headers TEXT NOT NULL, appended INTEGER NOT NULL,
    PRIMARY KEY (partition, "offset")
);
CREATE INDEX IF NOT EXISTS records_by_time ON records (partition, appended);
CREATE TABLE IF NOT EXISTS dead_letters (
    partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    event_id TEXT NOT NULL, paper_id TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
    recorded INTEGER NOT NULL,
    PRIMARY KEY (partition, "offset")
);
CREATE TABLE IF NOT EXISTS commits (
    "group" TEXT NOT NULL, partition INTEGER NOT NULL, committed INTEGER NOT NULL,
    PRIMARY KEY ("group", partition)
)
"""
_RECORD = 'partition, "offset", key, value, headers, appended'
_LETTER = "event_id, paper_id, reason, message, recorded"

_Append = tuple[int, str, bytes, str]


@dataclass(frozen=True, slots=True)
class _Waiter:
    """An append that is not written yet; `leave` ends its being counted as waiting."""

    row: _Append
    future: asyncio.Future[LogPosition]
    leave: Callable[[], None]


class LocalLog:
    """The log port on one SQLite file."""

    kind = "local"

    def __init__(
        self,
        path: Path,
        *,
        partitions: int,
        owner_wait_seconds: float = 0.0,
        most_waiting_bytes: int = 64 << 20,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path, self._partitions, self._owner_wait_seconds, self._now = path, partitions, owner_wait_seconds, now
        self._lock = OwnerLock(path.with_suffix(".lock"), f"the log {path}", "LOG_IN_USE")
        # FULL: what was acknowledged survives a power cut. NORMAL: a power cut may lose the last commits of a group,
        # never damage the file; the records in question are delivered again.
        # An append is synced before it is acknowledged. What the other connection writes may be lost in a power cut:
        # after offsets of an earlier moment events are delivered again, which changes nothing.
        self._appending = Database(path, synchronous="FULL")
        self._reading = Database(path, synchronous="NORMAL")
        self._waiting = Waiting(most_waiting_bytes)
        self._unwritten: list[_Waiter] = []
        self._flushing: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self._joined: set[str] = set()
        """Groups that have a member."""
        self._generations = count(1)
        self._log_id = ""

    @property
    def log_id(self) -> str:
        return self._log_id

    async def start(self) -> None:
        await self._lock.acquire(self._owner_wait_seconds)
        self._log_id = await self._appending.run(self._create, write=True)
        self._require_same()

    def _require_same(self) -> None:
        """Refuses a file that was put in the place of the one that was here before."""
        name = self._path.with_suffix(".id")
        if not name.exists():
            _write_durably(name, self._log_id)
        elif (before := name.read_text().strip()) != self._log_id:
            raise FailedPrecondition(
                f"{self._path.name} is log {self._log_id}, but this folder's was {before}; "
                f"put that one back, or delete {name.name} to go on with this one",
                reason="LOG_REPLACED",
            )

    def _create(self, db: sqlite3.Connection) -> str:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        _take_over_claims(db)
        if (row := db.execute("SELECT id, partitions FROM log").fetchone()) is None:
            row = (uuid.uuid4().hex, self._partitions)
            db.execute("INSERT INTO log VALUES (?, ?)", row)
        if row[1] != self._partitions:
            raise FailedPrecondition(
                f"the log has {row[1]} partitions and the settings say {self._partitions}; "
                "keys would change their partition, so set it back",
                reason="LOG_PARTITIONS_DIFFER",
            )
        return str(row[0])

    async def stop(self) -> None:
        if self._flushing is not None:
            await self._flushing
        await self._appending.close()
        await self._reading.close()
        self._lock.release()

    async def append(self, key: str, value: bytes, headers: Mapping[str, str]) -> LogPosition:
        leave = self._waiting.admit(len(value))
        future: asyncio.Future[LogPosition] = asyncio.get_running_loop().create_future()
        partition = zlib.crc32(key.encode()) % self._partitions
        self._unwritten.append(_Waiter((partition, key, value, json.dumps(dict(headers))), future, leave))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        """Writes what waits, all in one transaction; what came meanwhile is the next one."""
        while self._unwritten:
            batch, self._unwritten = self._unwritten, []
            try:
                positions = await self._appending.run(partial(self._insert, [each.row for each in batch]), write=True)
            except Exception as error:
                for each in batch:
                    each.leave()
                    if not each.future.done():
                        each.future.set_exception(error)
                continue
            for each, position in zip(batch, positions, strict=True):
                each.leave()
                if not each.future.done():
                    each.future.set_result(position)
            self._grown.set()
            self._grown = asyncio.Event()

    def _insert(self, rows: Sequence[_Append], db: sqlite3.Connection) -> list[LogPosition]:
        now = _microseconds(self._now())
        last: dict[int, tuple[int, int]] = {}  # offset and time of each partition's last record
        positions = []
        for partition, key, value, headers in rows:
            if partition not in last:
                last[partition] = db.execute(
                    'SELECT "offset", appended FROM records WHERE partition = ? ORDER BY "offset" DESC LIMIT 1',
                    (partition,),
                ).fetchone() or (-1, 0)
            offset, appended = last[partition] = (last[partition][0] + 1, max(now, last[partition][1]))
            db.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", (partition, offset, key, value, headers, appended)
            )
            positions.append(LogPosition(self._log_id, partition, offset))
        return positions

    @property
    def grown(self) -> asyncio.Event:
        """Set at the next append after this event was taken."""
        return self._grown

    async def partitions(self, group: str) -> list[PartitionState]:
        def states(db: sqlite3.Connection) -> list[PartitionState]:
            committed = self._committed(group, db)
            return [
                PartitionState(number, 0, _end_offset(db, number), committed[number])
                for number in range(self._partitions)
            ]

        return await self._reading.run(states)

    async def read(self, partition: int, first: int, end: int, most: int, most_bytes: int = READ_BYTES) -> list[Record]:
        return await self._reading.run(
            partial(self._records, partition=partition, first=first, end=end, most=most, most_bytes=most_bytes)
        )

    async def records_from(self, partition: int, first: int, most: int, most_bytes: int) -> list[Record]:
        """The records from `first` on, as many as both limits allow but at least one; LogBroken if `first` is gone."""
        return await self._reading.run(
            partial(self._records, partition=partition, first=first, end=None, most=most, most_bytes=most_bytes)
        )

    def _records(
        self,
        db: sqlite3.Connection,
        *,
        partition: int,
        first: int,
        end: int | None,
        most: int,
        most_bytes: int,
    ) -> list[Record]:
        rows = db.execute(
            f'SELECT {_RECORD} FROM records WHERE partition = ? AND "offset" >= ? AND "offset" < ? '
            'ORDER BY "offset" LIMIT ?',
            (partition, first, 1 << 62 if end is None else end, most),
        )
        records: list[Record] = []
        for row in rows:
            most_bytes -= len(row[3])
            if records and most_bytes < 0:
                break
            records.append(self._record(row))
        found = records[0].position.offset if records else _end_offset(db, partition)
        if found != first if records else found < first and end is None:
            raise LogBroken(
                f"partition {partition} of log {self._log_id} has no offset {first}, but {found}",
                reason="OFFSET_OUT_OF_RANGE",
            )
        return records

    def _record(self, row: Sequence[object]) -> Record:
        partition, offset, key, value, headers, appended = row
        position = LogPosition(self._log_id, int(str(partition)), int(str(offset)))
        assert isinstance(value, bytes)
        return Record(position, str(key), value, json.loads(str(headers)), _from_microseconds(int(str(appended))))

    async def offset_at(self, partition: int, when: datetime) -> int:
        def first(db: sqlite3.Connection) -> int:
            row = db.execute(
                'SELECT min("offset") FROM records WHERE partition = ? AND appended >= ?',
                (partition, _microseconds(when)),
            ).fetchone()
            return _end_offset(db, partition) if row[0] is None else int(row[0])

        return await self._reading.run(first)

    async def join(self, group: str) -> LocalConsumer:
        """The group's only member; FailedPrecondition while it has another."""
        if group in self._joined:
            raise FailedPrecondition(
                f"the group {group!r} has a member already; several need Kafka", reason="GROUP_HAS_A_MEMBER"
            )
        self._joined.add(group)
        try:
            committed = await self._reading.run(partial(self._committed, group))
        except BaseException:
            self._joined.discard(group)
            raise
        return LocalConsumer(self, group, next(self._generations), committed, partial(self._joined.discard, group))

    def _committed(self, group: str, db: sqlite3.Connection) -> list[int]:
        """The group's committed offset of every partition."""
        known = dict(db.execute('SELECT partition, committed FROM commits WHERE "group" = ?', (group,)))
        return [known.get(number, 0) for number in range(self._partitions)]

    async def commit(self, group: str, partition: int, offset: int) -> None:
        """Raises the group's committed offset to this one; never lowers it."""
        await self._reading.run(
            lambda db: db.execute(
                'INSERT INTO commits VALUES (?, ?, ?) ON CONFLICT ("group", partition) '
                "DO UPDATE SET committed = max(committed, excluded.committed)",
                (group, partition, offset),
            ),
            write=True,
        )

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        rows = [
            (
                *(each.record.position.partition, each.record.position.offset),
                *(each.event_id, each.paper_id, each.reason, each.message, _microseconds(each.recorded)),
            )
            for each in letters
        ]
        await self._appending.run(
            lambda db: db.executemany("INSERT OR IGNORE INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?)", rows),
            write=True,
        )

    async def dead_letters(self, after: LogPosition | None, most: int) -> list[DeadLetter]:
        start = (after.partition, after.offset) if after else (-1, -1)
        later = '(partition, "offset") > (?, ?)'
        return await self._reading.run(lambda db: self._letters(db, later, start, most, value="x''"))

    async def find_dead_letters(self, positions: Sequence[LogPosition]) -> list[DeadLetter]:
        own = [(each.partition, each.offset) for each in positions if each.log_id == self._log_id]
        exactly = '(partition, "offset") = (?, ?)'
        return await self._reading.run(
            lambda db: [letter for place in own for letter in self._letters(db, exactly, place, 1)]
        )

    def _letters(
        self, db: sqlite3.Connection, condition: str, place: tuple[int, int], most: int, value: str = "value"
    ) -> list[DeadLetter]:
        rows = db.execute(
            f'SELECT partition, "offset", key, {value}, headers, appended, {_LETTER} '
            f'FROM dead_letters JOIN records USING (partition, "offset") '
            f'WHERE {condition} ORDER BY partition, "offset" LIMIT ?',
            (*place, most),
        )
        return [
            DeadLetter(self._record(row[:6]), row[6], row[7], row[8], row[9], _from_microseconds(row[10]))
            for row in rows
        ]

    async def count_dead_letters(self) -> int:
        return await self._reading.run(lambda db: int(db.execute("SELECT count(*) FROM dead_letters").fetchone()[0]))


def _end_offset(db: sqlite3.Connection, partition: int) -> int:
    """Where the partition's next record goes."""
    row = db.execute('SELECT max("offset") FROM records WHERE partition = ?', (partition,)).fetchone()
    return 0 if row[0] is None else int(row[0]) + 1


def _take_over_claims(db: sqlite3.Connection) -> None:
    """Moves the committed offsets of a log that was written when a group could have several members."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'claims'").fetchone():
        db.execute('INSERT OR IGNORE INTO commits SELECT "group", partition, committed FROM claims')
        db.execute("DROP TABLE claims")
        db.execute("DROP TABLE members")


def _write_durably(path: Path, text: str) -> None:
    """Writes the whole file or, if the machine stops meanwhile, nothing."""
    draft = path.with_name(path.name + ".new")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _from_microseconds(count: int) -> datetime:
    return _EPOCH + count * _MICROSECOND


def _microseconds(when: datetime) -> int:
    return (when - _EPOCH) // _MICROSECOND
