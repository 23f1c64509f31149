"""Who consumes which partition of a local log: members, claims and their commits, kept in the log's own file.

Every member writes a heartbeat; one that stops beating loses its claims after the lease. A partition belongs to the
member that its number picks from the sorted list of living members. Each handing over raises the partition's
generation, and a commit counts only under the generation it was claimed with: one who wakes up late can spoil nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from citewell.ingestion.log import Claim, ClaimLost, Record
from citewell.runtime.errors import CitewellError
from citewell.runtime.telemetry import logger

if TYPE_CHECKING:
    from citewell.ingestion.local_log import Database, LocalLog

BEATS_A_LEASE = 4
POLL_SECONDS = 0.1
"""How often to look for what other processes appended; this process's own appends are told at once."""


class LocalConsumer:
    """A member of a group on a local log."""

    def __init__(
        self,
        log: LocalLog,
        database: Database,
        group: str,
        partitions: int,
        lease_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,  # one clock for all processes of a machine, until it restarts
    ) -> None:
        self._log, self._database, self._group, self._partitions = log, database, group, partitions
        self._lease_seconds, self._monotonic = lease_seconds, monotonic
        self._member = uuid.uuid4().hex
        self._held: dict[int, Claim] = {}
        self._fetched: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._leaving: dict[int, float] = {}
        """Partitions to hand over, and until when their work in flight is waited for."""
        self._changed = asyncio.Condition()
        self._beat_now = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._beat()
        self._beating = asyncio.create_task(self._beat_on())

    async def claims(self, known: frozenset[Claim]) -> frozenset[Claim]:
        async with self._changed:
            await self._changed.wait_for(lambda: frozenset(self._held.values()) != known)
            return frozenset(self._held.values())

    async def fetch(self, claim: Claim, most: int, most_bytes: int, wait_seconds: float) -> list[Record]:
        deadline = self._monotonic() + wait_seconds
        while True:
            self._require(claim)
            grown = self._log.grown
            first = self._fetched[claim.partition]
            if claim.partition not in self._leaving:
                records = await self._database.run(
                    lambda db, first=first: self._log.records(  # type: ignore[misc]
                        db, partition=claim.partition, first=first, end=None, most=most, most_bytes=most_bytes
                    )
                )
                self._require(claim)
                if records:
                    self._fetched[claim.partition] = records[-1].position.offset + 1
                    return records
            left = deadline - self._monotonic()
            if left <= 0:
                return []
            await _within(grown.wait(), min(left, POLL_SECONDS))

    async def commit(self, claim: Claim, offset: int) -> None:
        key = (offset, self._group, claim.partition, self._member, claim.generation)
        changed = await self._database.run(
            lambda db: (
                db.execute(
                    "UPDATE claims SET committed = max(committed, ?) "
                    'WHERE "group" = ? AND partition = ? AND owner = ? AND generation = ?',
                    key,
                ).rowcount
            ),
            write=True,
        )
        if not changed:
            self._beat_now.set()
            raise _lost(claim)
        self._committed[claim.partition] = max(self._committed.get(claim.partition, 0), offset)
        if claim.partition in self._leaving and not self._in_flight(claim.partition):
            self._beat_now.set()

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

        def leave(db: sqlite3.Connection) -> None:
            db.execute('DELETE FROM members WHERE "group" = ? AND member = ?', (self._group, self._member))
            db.execute('UPDATE claims SET owner = NULL WHERE "group" = ? AND owner = ?', (self._group, self._member))

        await self._database.run(leave, write=True)
        await self._hold({})

    def _require(self, claim: Claim) -> None:
        if self._held.get(claim.partition) != claim:
            raise _lost(claim)

    def _in_flight(self, partition: int) -> bool:
        return self._fetched.get(partition, 0) > self._committed.get(partition, 0)

    async def _beat_on(self) -> None:
        while True:
            await _within(self._beat_now.wait(), self._lease_seconds / BEATS_A_LEASE)
            self._beat_now.clear()
            try:
                await self._beat()
            except CitewellError as error:  # claims run out by themselves if this goes on
                logger.warning("heartbeat", group=self._group, error=error.message)

    async def _beat(self) -> None:
        now = self._monotonic()
        busy = {
            partition
            for partition in self._held
            if self._in_flight(partition) and now < self._leaving.get(partition, now + 1)
        }
        held, leaving = await self._database.run(lambda db: self._settle(db, now, busy), write=True)
        self._leaving = {partition: self._leaving.get(partition, now + self._lease_seconds) for partition in leaving}
        await self._hold(held)

    def _settle(
        self, db: sqlite3.Connection, now: float, busy: set[int]
    ) -> tuple[dict[int, tuple[int, int]], set[int]]:
        """(generation, committed offset) of every partition this member holds now, and those to be handed over."""
        group, me = self._group, self._member
        # A beat from the future was written before the machine last started.
        db.execute(
            'DELETE FROM members WHERE "group" = ? AND NOT (? - beat BETWEEN 0 AND ?)',
            (group, now, self._lease_seconds),
        )
        db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", (group, me, now))
        living = [
            row[0] for row in db.execute('SELECT member FROM members WHERE "group" = ? ORDER BY member', (group,))
        ]
        held, leaving = {}, set()
        for partition in range(self._partitions):
            db.execute('INSERT OR IGNORE INTO claims ("group", partition) VALUES (?, ?)', (group, partition))
            owner, generation, committed = db.execute(
                'SELECT owner, generation, committed FROM claims WHERE "group" = ? AND partition = ?',
                (group, partition),
            ).fetchone()
            mine = living[partition % len(living)] == me
            if owner == me and not mine and partition in busy:
                leaving.add(partition)
            elif owner == me and not mine:
                owner = None
            elif mine and owner not in living:
                owner, generation = me, generation + 1
            db.execute(
                'UPDATE claims SET owner = ?, generation = ? WHERE "group" = ? AND partition = ?',
                (owner, generation, group, partition),
            )
            if owner == me:
                held[partition] = (generation, committed)
        return held, leaving

    async def _hold(self, held: dict[int, tuple[int, int]]) -> None:
        claims = {partition: Claim(partition, generation) for partition, (generation, _) in held.items()}
        async with self._changed:
            for partition, (_, committed) in held.items():
                if claims[partition] != self._held.get(partition):
                    self._fetched[partition] = self._committed[partition] = committed
            if claims != self._held:
                self._held = claims
                self._changed.notify_all()


def _lost(claim: Claim) -> ClaimLost:
    return ClaimLost(f"partition {claim.partition} belongs to another member by now", generation=claim.generation)


async def _within(event: Awaitable[object], seconds: float) -> None:
    # Not wait_for: before Python 3.12 it swallows a cancellation that comes when the event has just happened.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event
