"""Applies the log's records to the ledger, in batches and in order. A record is committed once it is applied or dead.

Each claimed partition has its own task, so a partition that waits for a retry delays no other. While it waits, nothing
more is fetched from it. Memory therefore holds at most one fetched batch a partition.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from citewell.ingestion import metrics
from citewell.ingestion.logs.event_log import Claim, ClaimLost, Consumer, DeadLetter, EventLog, Record
from citewell.runtime import faults
from citewell.runtime.errors import CitewellError, DeadlineExceeded, FailedPrecondition
from citewell.runtime.telemetry import logger
from citewell.scholarly.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ledger made of one record."""

    outcome: Outcome
    event_id: str = ""
    paper_id: str = ""
    reason: str = ""
    message: str = ""


class ApplyTimedOut(DeadlineExceeded):
    """The ledger works, but did not apply these events in the time it is given."""

    default_reason = "APPLY_TIMEOUT"


class Ledger(Protocol):
    """Where events take effect. Both methods may be repeated; they raise when they may not have worked."""

    async def apply(self, records: Sequence[Record]) -> list[Verdict]:
        """One verdict a record, in order; all but the dead ones are durable. Bytes that are no event are dead too.

        Raises ApplyTimedOut only if the ledger answers otherwise, so that an outage is never blamed on an event.
        """

    async def record_dead(self, letters: Sequence[DeadLetter]) -> None:
        """Lets the ledger's watermark pass events whose dead letters are delivered."""

    def names(self, record: Record) -> tuple[str, str]:
        """The ids of a record's event and of its paper."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Sizes of batches, and pauses between attempts."""

    most_records: int = 256
    most_bytes: int = 8 << 20
    poll_seconds: float = 5.0
    gather_seconds: float = 0.0
    """After a batch that was not full, the next one is fetched at a multiple of this time, so that it is larger, and so
    that all partitions send theirs together: the ledger then applies them in one transaction."""
    most_timeouts: int = 3
    """How often an event may exceed the ledger's time, alone in its batch, before it becomes a dead letter."""
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 30.0


class Worker:
    """One member of the group that applies the log.

    Errors are retried for ever, except that an event which alone exceeds the ledger's time becomes a dead letter.
    """

    def __init__(
        self,
        log: EventLog,
        ledger: Ledger,
        group: str,
        pace: Pace,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._log, self._ledger, self._group, self._pace = log, ledger, group, pace
        self._now, self._sleep, self._draw = now, sleep, draw
        self._halted: dict[int | None, str] = {}
        """Why a partition stands still. The key None stands for the group membership."""

    def check(self) -> None:
        """Raises FailedPrecondition while a partition stands still for a reason that an operator must mend."""
        for why in self._halted.values():
            raise FailedPrecondition(f"the worker stands still: {why}", reason="WORKER_HALTED")

    async def run(self) -> None:
        """Applies records until cancelled. Joins the group again whenever the membership fails."""
        failures = 0
        while True:
            try:
                async for _ in self._membership():
                    failures = self._worked(None)
            except Exception as error:
                failures = await self._failed(None, error, failures)

    async def _membership(self) -> AsyncIterator[None]:
        """Runs one task for each claim that is held. Yields after every change of claims."""
        consumer = await self._log.join(self._group)
        tasks: dict[Claim, asyncio.Task[None]] = {}
        held: frozenset[Claim] = frozenset()
        try:
            while True:
                held = await consumer.claims(held)
                for claim in tasks.keys() - held:
                    tasks.pop(claim).cancel()
                for claim in held - tasks.keys():
                    tasks[claim] = asyncio.create_task(self._work_on(consumer, claim))
                self._halted = {key: why for key, why in self._halted.items() if key in {c.partition for c in held}}
                yield
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            await consumer.close()

    async def _work_on(self, consumer: Consumer, claim: Claim) -> None:
        """Applies one partition's records, batch after batch, until the claim is lost."""
        pace = self._pace
        records: list[Record] = []
        most, failures = pace.most_records, 0
        alone_until = timeouts = 0
        while True:
            if records and records[0].position.offset < alone_until:
                most = 1
            batch = records[:most]
            try:
                if not batch:
                    records = await consumer.fetch(claim, pace.most_records, pace.most_bytes, pace.poll_seconds)
                    batch = records[:most]
                if batch:
                    faults.point("after-poll")
                    if timeouts >= pace.most_timeouts:
                        await self._give_up(batch[0])
                    await self.deliver(batch)
                    faults.point("before-offset-commit")
                    await consumer.commit(claim, batch[-1].position.offset + 1)
            except ClaimLost:
                return
            except ApplyTimedOut as error:
                if len(batch) > 1:  # apply its events one by one, to find the slow one
                    alone_until = batch[-1].position.offset + 1
                else:
                    timeouts += 1
                failures = await self._failed(claim.partition, error, failures)
            except Exception as error:
                if not getattr(error, "retryable", False):  # halve the batch: one record may be the cause
                    most = max(1, len(batch) // 2)
                failures = await self._failed(claim.partition, error, failures)
            else:
                failures = self._worked(claim.partition)
                timeouts = 0
                records = records[len(batch) :]
                if pace.gather_seconds and batch and not records and len(batch) < most:
                    await self._sleep(pace.gather_seconds - self._now().timestamp() % pace.gather_seconds)
                most = min(pace.most_records, 2 * most)

    async def _give_up(self, record: Record) -> None:
        """Makes a dead letter of an event that takes too long. If it is applied after all, the ledger says so."""
        event_id, paper_id = self._ledger.names(record)
        message = f"applying it alone exceeded the ledger's time {self._pace.most_timeouts} times"
        logger.error("dead letter", position=str(record.position), reason=ApplyTimedOut.default_reason)
        await self._log.bury(
            [DeadLetter(record, event_id, paper_id, ApplyTimedOut.default_reason, message, self._now())]
        )

    async def _failed(self, partition: int | None, error: Exception, failures: int) -> int:
        """Pauses, longer after each failure in a row. Returns the number of failures in a row."""
        if isinstance(error, FailedPrecondition):
            self._halted[partition] = error.message
        elif not isinstance(error, CitewellError):
            logger.error("defect", partition=partition, exc_info=error)
        seconds = min(self._pace.longest_backoff_seconds, self._pace.first_backoff_seconds * 2.0 ** min(failures, 30))
        seconds *= 0.5 + 0.5 * self._draw()
        metrics.retries.add(1, {"reason": getattr(error, "reason", type(error).__name__)})
        logger.warning("retry", partition=partition, error=str(error), failures=failures + 1, seconds=round(seconds, 3))
        await self._sleep(seconds)
        return failures + 1

    def _worked(self, partition: int | None) -> int:
        self._halted.pop(partition, None)
        return 0

    async def deliver(self, records: Sequence[Record]) -> list[Outcome]:
        """Applies the records. When it returns, each is applied, or is a dead letter that the ledger knows of.

        A dead letter's record is not applied when it is delivered again. A re-drive publishes it as a new event.
        """
        positions = [record.position for record in records]
        letters = {letter.record.position: letter for letter in await self._log.find_dead_letters(positions)}
        alive = [record for record in records if record.position not in letters]
        judged = await self._ledger.apply(alive) if alive else []
        died = []
        for record, verdict in zip(alive, judged, strict=True):
            metrics.delivered.add(1, {"outcome": verdict.outcome.value})
            if verdict.outcome is Outcome.DEAD:
                names = verdict.event_id, verdict.paper_id, verdict.reason, verdict.message
                died.append(DeadLetter(record, *names, self._now()))
        if died:
            await self._log.bury(died)
        letters |= {letter.record.position: letter for letter in died}
        if letters:
            faults.point("during-dead-letter")
            await self._ledger.record_dead(list(letters.values()))
        outcomes = {record.position: verdict.outcome for record, verdict in zip(alive, judged, strict=True)}
        return [outcomes.get(position, Outcome.DEAD) for position in positions]
