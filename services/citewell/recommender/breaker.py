"""A circuit breaker: an optional dependency that keeps failing is left alone for a while."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Opens after some failures in a row; after a rest it lets one attempt through, which closes or reopens it."""

    def __init__(self, failures: int, rest_seconds: float, clock: Callable[[], float]) -> None:
        self._allowed_failures, self._rest, self._clock = failures, rest_seconds, clock
        self._failures = 0
        self._next_attempt = float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether most attempts are refused."""
        return self._failures >= self._allowed_failures

    @property
    def is_resting(self) -> bool:
        """Whether an attempt would be refused now. Without attempts an open breaker rests only once."""
        return self.is_open and self._clock() < self._next_attempt

    def admits(self) -> bool:
        """Whether to try now. An open breaker lets one attempt through, and the next only after another rest."""
        if not self.is_open:
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
