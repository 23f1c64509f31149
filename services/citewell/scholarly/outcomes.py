"""What becomes of a publication event, from the log to the answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What applying an event to the ledger did."""

    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    SUPERSEDED = "SUPERSEDED"
    DEAD = "DEAD"


@dataclass(frozen=True, slots=True)
class EventState:
    """What the ledger knows of an event; no outcome means that it has not seen it."""

    outcome: Outcome | None
    searchable: bool = False
    reason: str = ""
    message: str = ""
