"""A circuit breaker: an optional dependency that keeps failing is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Opens after some failures in a row; after a rest it lets one attempt through, which closes or reopens it."""

    def __init__(self, failures: int, rest_seconds: float, clock: Callable[[], float]) -> None:
        self._allowed_failures, self._rest, self._clock = failures, rest_seconds, clock
        self._failures = 0
        self._next_attempt = float("-inf")

    def admits(self) -> bool:
        """Whether to try now. While open, the one who is told yes is the only one until the next rest is over."""
        if self._failures < self._allowed_failures:
            return True
        if self._clock() < self._next_attempt:
            return False
        self._next_attempt = self._clock() + self._rest
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._next_attempt = self._clock() + self._rest
