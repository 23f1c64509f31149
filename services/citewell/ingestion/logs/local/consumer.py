"""The one member of a consumer group on a local log: it holds every partition until it is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from citewell.ingestion.logs.event_log import Claim, ClaimLost, Record


class Records(Protocol):
    """What a member needs of its log."""

    @property
    def grown(self) -> asyncio.Event:
        """Set at the next append after this event was taken."""

    async def records_from(self, partition: int, first: int, most: int, most_bytes: int) -> list[Record]:
        """The records from `first` on, as many as both limits allow but at least one; LogBroken if `first` is gone."""

    async def commit(self, group: str, partition: int, offset: int) -> None:
        """Raises the group's committed offset to this one; never lowers it."""


class LocalConsumer:
    """Reads where the group's last member committed. `left` is called once, by `close`."""

    def __init__(
        self, log: Records, group: str, generation: int, committed: list[int], left: Callable[[], None]
    ) -> None:
        self._log, self._group, self._left = log, group, left
        self._held = frozenset(Claim(partition, generation) for partition in range(len(committed)))
        self._next = committed
        """The offset to fetch next, by partition."""
        self._closed = asyncio.Event()

    async def claims(self, known: frozenset[Claim]) -> frozenset[Claim]:
        if self._held == known:
            await self._closed.wait()
        return self._held

    async def fetch(self, claim: Claim, most: int, most_bytes: int, wait_seconds: float) -> list[Record]:
        deadline = time.monotonic() + wait_seconds
        while True:
            self._require(claim)
            grown = self._log.grown  # taken before the read, so that no append between the two is missed
            records = await self._log.records_from(claim.partition, self._next[claim.partition], most, most_bytes)
            self._require(claim)
            if records:
                self._next[claim.partition] = records[-1].position.offset + 1
                return records
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that arrives together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await grown.wait()
                    continue
            return []

    async def commit(self, claim: Claim, offset: int) -> None:
        self._require(claim)
        await self._log.commit(self._group, claim.partition, offset)

    async def close(self) -> None:
        if not self._closed.is_set():
            self._held = frozenset()
            self._closed.set()
            self._left()

    def _require(self, claim: Claim) -> None:
        if claim not in self._held:
            raise ClaimLost(f"the member that held partition {claim.partition} was closed", generation=claim.generation)
