"""Settings of ingestion, prefix CITEWELL_INGESTION__."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.runtime.settings import ServiceSettings
from citewell.scholarly.limits import MAX_EVENT_BYTES


class LogSettings(BaseModel):
    """Where published events are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["local", "kafka"] = "local"
    """local: one SQLite file on this machine; kafka: a broker."""
    group: str = Field("citewell-ledger", min_length=1)
    """Consumer group of the workers; a new name starts at the earliest record."""
    expected_id: str = ""
    """Id that the log must have, so that a replaced topic is noticed; empty = any. The local log remembers its own."""
    most_waiting_megabytes: int = Field(64, ge=8)
    """Events that wait for disk or broker; more are refused with RESOURCE_EXHAUSTED. Costs a few times the memory."""
    partitions: int = Field(4, ge=1, le=1024)
    """local: number of partitions; fixed once the file exists."""
    owner_wait_seconds: float = Field(10.0, ge=0)
    """local: how long to wait at start for the process before this one to release the log."""
    kafka: KafkaSettings = KafkaSettings()
    """kafka: the broker, and how long to wait for it."""


class PaceSettings(BaseModel):
    """Sizes of the worker's batches, and pauses between its attempts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    most_records: int = Field(256, ge=1)
    """Most events in one batch."""
    most_megabytes: int = Field(8, ge=1, le=16)
    """Most bytes in one batch."""
    gather_seconds: float = Field(0.2, ge=0)
    """After a batch that was not full, wait for the next multiple of this time, so that the next batch is larger and
    all partitions send theirs together. That costs less per event."""
    apply_seconds: float = Field(120.0, gt=0)
    """How long the ledger may take for one batch. After that its events are applied one by one."""
    most_timeouts: int = Field(3, ge=1)
    """An event that alone takes longer than apply_seconds so often becomes a dead letter (APPLY_TIMEOUT)."""
    first_backoff_seconds: float = Field(0.1, gt=0)
    """Pause after a first failure; doubled, with jitter, after each further one in a row."""
    longest_backoff_seconds: float = Field(30.0, gt=0)
    """Longest pause between two attempts."""


class IngestionSettings(ServiceSettings):
    """All settings of ingestion."""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_INGESTION__")

    data: Path = Path(".citewell")
    """Folder of the local logs: log.sqlite, and feedback.sqlite once feedback is recorded."""
    profiler_address: str = Field("127.0.0.1:7301", min_length=1)
    """The profiler, which keeps the ledger."""
    consume: bool = True
    """Run a worker in this process; False = only serve calls."""
    most_event_megabytes: int = Field(8, ge=1, le=MAX_EVENT_BYTES >> 20)
    """Largest event accepted."""
    stream_window: int = Field(256, ge=1)
    """PublishStream: how many events of a stream may wait for the log; then it is read no further."""
    stream_window_megabytes: int = Field(16, ge=1)
    """PublishStream: how large these events may be together; a single larger one is taken."""
    log: LogSettings = LogSettings()
    """Where published events are kept."""
    pace: PaceSettings = PaceSettings()
    """The worker's pace."""
