"""What ingestion counts. Labels hold no ids."""

from __future__ import annotations

import time
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

from citewell.ingestion.logs.event_log import PartitionState
from citewell.runtime.backlog import Backlog
from citewell.runtime.telemetry import meter

published = meter.create_counter("citewell_published", description="Events accepted, by kind")
delivered = meter.create_counter("citewell_delivered", description="Events the ledger judged, by outcome")
retries = meter.create_counter("citewell_retries", description="Attempts to apply that failed, by reason")


def observe(states: list[PartitionState], dead_letters: int) -> None:
    """Sets the gauges to these states of the log and this number of dead letters."""
    _states[:] = states
    for state in states:
        _backlog.sample(state.partition, state.end_offset, state.committed_offset)
    _dead_letters.set(dead_letters)


_states: list[PartitionState] = []
_backlog = Backlog(time.monotonic)
_dead_letters = meter.create_gauge("citewell_dead_letters", description="Dead letters in the log")


def _lags(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(state.end_offset - state.committed_offset, {"partition": state.partition}) for state in _states]


def _watermarks(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(state.committed_offset, {"partition": state.partition}) for state in _states]


def _ages(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(seconds, {"partition": str(key)}) for key, seconds in _backlog.seconds().items()]


meter.create_observable_gauge(
    "citewell_lag.age", [_ages], unit="s", description="Age of the oldest record not acknowledged yet, by partition"
)
meter.create_observable_gauge("citewell_lag", [_lags], description="Records not acknowledged yet, by partition")
meter.create_observable_gauge(
    "citewell_watermark", [_watermarks], description="Offset before which every record took effect, by partition"
)
