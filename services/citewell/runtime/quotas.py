"""Quotas: how many calls each client may make, and how many at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from citewell.runtime.errors import Overloaded
from citewell.runtime.policy import Limits

MOST_CLIENTS = 10_000
"""Clients that are remembered. The one unused for longest is forgotten, and may begin again with a full burst."""
_BUSY_RETRY_SECONDS = 0.5


@dataclass(slots=True)
class _Account:
    left: float
    """Calls that may be made now."""
    counted: float
    """When `left` was last brought up to date."""
    in_progress: int = 0


class Quotas:
    """A token bucket and a count of calls in progress for each client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    @contextmanager
    def call(self, client: str, limits: Limits, weight: int = 1) -> Iterator[None]:
        """Holds a place for a call while the block runs; Overloaded when the client has none left."""
        account = self._account(client, limits)
        if limits.concurrent and account.in_progress >= limits.concurrent:
            raise _exceeded(f"{account.in_progress} calls of this client are in progress", _BUSY_RETRY_SECONDS)
        wait = self._take(account, limits, weight)
        if wait:
            raise _exceeded(f"this client may make {limits.calls_per_second:g} calls a second", wait)
        account.in_progress += 1
        try:
            yield
        finally:
            account.in_progress -= 1

    async def pace(self, client: str, limits: Limits) -> None:
        """Returns when the client may send the next message of a stream."""
        wait = self._take(self._account(client, limits), limits, 1)
        while wait > 0:
            await asyncio.sleep(wait)
            wait = self._take(self._account(client, limits), limits, 1)

    def _take(self, account: _Account, limits: Limits, weight: int) -> float:
        """Takes calls out of the bucket; the seconds to wait when it holds too few, and then takes none."""
        if not limits.calls_per_second:
            return 0.0
        now, burst = self._clock(), _burst(limits)
        account.left = min(burst, account.left + (now - account.counted) * limits.calls_per_second)
        account.counted = now
        weight = min(weight, burst)
        if account.left >= weight:
            account.left -= weight
            return 0.0
        return (weight - account.left) / limits.calls_per_second

    def _account(self, client: str, limits: Limits) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(_burst(limits), self._clock())
            self._forget()
        self._accounts.move_to_end(client)
        return account

    def _forget(self) -> None:
        if len(self._accounts) > MOST_CLIENTS:
            idle = next((name for name, each in self._accounts.items() if not each.in_progress), None)
            if idle is not None:
                del self._accounts[idle]


def _burst(limits: Limits) -> int:
    return limits.burst or max(1, round(2 * limits.calls_per_second))


def _exceeded(told: str, retry_seconds: float) -> Overloaded:
    return Overloaded(f"{told}; retry later", retry_after_seconds=retry_seconds, reason="QUOTA_EXCEEDED")
