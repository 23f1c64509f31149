"""Index, profiler and ingestion over an empty folder: the services that apply an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from citewell.commands.stack import Stack, choose_ports
from tests.tiny_models import write_tiny_encoder

SERVICES = ("index", "profiler", "ingestion")


@contextmanager
def ledger_stack(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """The three as processes, with a tiny encoder, small batches and short pauses; `more` are further settings."""
    settings = {
        "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
        "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
        "CITEWELL_PROFILER__ENCODER_THREADS": "1",
        "CITEWELL_INGESTION__LOG__PARTITIONS": "2",
        "CITEWELL_INGESTION__PACE__MOST_RECORDS": "4",
        "CITEWELL_INGESTION__PACE__LONGEST_BACKOFF_SECONDS": "0.3",
        **(more or {}),
    }
    stack = Stack(folder / "data", choose_ports(0), settings=settings)
    try:
        stack.start(SERVICES)
        stack.wait(SERVICES)
        yield stack
    finally:
        stack.stop(reversed(SERVICES))
