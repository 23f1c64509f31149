"""Admission: how much work a service takes on. What exceeds it is refused at once, with the time to retry after.

Three limits, each with its own setting: calls of one method in progress or waiting, bytes of all requests in progress,
and for methods that queue for the processor the time a new call would take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from citewell.runtime import telemetry
from citewell.runtime.errors import Overloaded

# Methods whose calls wait for the processor, in the order they come. For these the time that a new call would take
# can be told from how many are in progress; for calls that wait for an event it cannot.
PACED = frozenset({"/citewell.profiler.v1.ProfileQueryService/EmbedQuery"})

# Weight of the newest call in the running mean of the seconds that a call costs. Adapt quickly downwards: an estimate
# that is too high refuses calls that would have finished in time.
_IF_SLOWER, _IF_FASTER = 0.1, 0.5
# Share of the allowed time that the estimate may fill: it is a mean, and some calls take longer.
_FILLED = 0.8
LEAST_RETRY_SECONDS, MOST_RETRY_SECONDS = 0.05, 5.0

_shed = telemetry.meter.create_counter("citewell_calls_shed", description="Calls refused by admission, by limit")
_in_flight = telemetry.meter.create_up_down_counter("citewell_calls_in_flight", description="Calls in progress")


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What a service takes on at a time."""

    calls: int
    """Calls of one method, so that calls of one method cannot keep out those of another."""
    request_bytes: int
    """Bytes of all requests; a single larger one is taken when there is no other."""
    wait_seconds: float
    """Longest time that a call of a paced method may be expected to take."""


@dataclass(slots=True)
class _Method:
    """One method's calls in progress, and what a call costs: seconds until the next one can begin."""

    in_flight: int = 0
    cost: float = 0.0


@dataclass(slots=True)
class Admission:
    """Decides for each call whether to take it."""

    limits: AdmissionLimits
    clock: Callable[[], float]
    _methods: dict[str, _Method] = field(default_factory=lambda: defaultdict(_Method))
    _bytes: int = 0

    def __post_init__(self) -> None:
        for limit in ("calls", "bytes", "time"):  # a rate needs a value from before the first increase
            _shed.add(0, {"limit": limit})

    @contextmanager
    def call(self, name: str, size: int, seconds_left: float) -> Iterator[None]:
        """Holds a place for the call; Overloaded when there is none."""
        method = self._methods[name]
        self._require_place(name, method, size, seconds_left)
        method.in_flight += 1
        self._bytes += size
        _in_flight.add(1, {"rpc.method": name.lstrip("/")})
        among, started = method.in_flight, self.clock()
        try:
            yield
            self._learn(method, (self.clock() - started) / among)
        finally:
            method.in_flight -= 1
            self._bytes -= size
            _in_flight.add(-1, {"rpc.method": name.lstrip("/")})

    def _require_place(self, name: str, method: _Method, size: int, seconds_left: float) -> None:
        if method.in_flight >= self.limits.calls:
            raise self._refusal(name, "calls", f"{method.in_flight} calls are in progress", method.cost)
        if self._bytes and self._bytes + size > self.limits.request_bytes:
            told = f"requests of {self._bytes >> 20} MiB are in progress"
            raise self._refusal(name, "bytes", told, method.cost)
        # A call that comes alone is always taken: an estimate that is wrong then corrects itself.
        if name in PACED and method.in_flight:
            expected = (method.in_flight + 1) * method.cost
            allowed = min(seconds_left, self.limits.wait_seconds)
            if expected > _FILLED * allowed:
                told = f"a call would take about {expected:.1f} s and may take {allowed:.1f} s"
                raise self._refusal(name, "time", told, expected / 2)

    def _refusal(self, name: str, limit: str, told: str, retry_seconds: float) -> Overloaded:
        _shed.add(1, {"rpc.method": name.lstrip("/"), "limit": limit})
        seconds = min(max(retry_seconds, LEAST_RETRY_SECONDS), MOST_RETRY_SECONDS)
        return Overloaded(f"{name.rpartition('/')[2]}: {told}", retry_after_seconds=seconds)

    def _learn(self, method: _Method, cost: float) -> None:
        known = method.cost or cost
        method.cost = known + (_IF_FASTER if cost < known else _IF_SLOWER) * (cost - known)
