"""What ingestion counts. Labels hold no ids."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

from citewell.ingestion.logs.event_log import PartitionState
from citewell.runtime.telemetry import meter

published = meter.create_counter("citewell_published", description="Events accepted, by kind")
delivered = meter.create_counter("citewell_delivered", description="Events the ledger judged, by outcome")
retries = meter.create_counter("citewell_retries", description="Attempts to apply that failed, by reason")


def observe(states: list[PartitionState]) -> None:
    """Sets the gauges of lag and watermark to these states."""
    _states[:] = states


_states: list[PartitionState] = []


def _lags(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(state.end_offset - state.committed_offset, {"partition": state.partition}) for state in _states]


def _watermarks(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(state.committed_offset, {"partition": state.partition}) for state in _states]


meter.create_observable_gauge("citewell_lag", [_lags], description="Records not acknowledged yet, by partition")
meter.create_observable_gauge(
    "citewell_watermark", [_watermarks], description="Offset before which every record took effect, by partition"
)
