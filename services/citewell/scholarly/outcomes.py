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


class PublicationState(StrEnum):
    """How far a publication has come."""

    ACCEPTED = "ACCEPTED"
    """Durable in the log."""
    APPLIED = "APPLIED"
    """Applied to the ledger."""
    SEARCHABLE = "SEARCHABLE"
    """Searchable in the serving view."""
    DEAD = "DEAD"
    """Can never be applied: a dead letter."""


@dataclass(frozen=True, slots=True)
class EventState:
    """What the ledger knows of an event; no outcome means that it has not seen it."""

    outcome: Outcome | None
    searchable: bool = False
    reason: str = ""
    message: str = ""

    @property
    def publication_state(self) -> PublicationState:
        """How far the event's publication has come."""
        if self.outcome is None:
            return PublicationState.ACCEPTED
        if self.outcome is Outcome.DEAD:
            return PublicationState.DEAD
        return PublicationState.SEARCHABLE if self.searchable else PublicationState.APPLIED
