"""Converts outcomes and states of publications to messages and back."""

from __future__ import annotations

from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2
from citewell.scholarly.outcomes import Outcome, PublicationState


def outcome_to_message(outcome: Outcome | None) -> ledger_pb2.EventOutcome.ValueType:
    """The outcome as a message; UNSPECIFIED for an event that the ledger has not seen."""
    if outcome is None:
        return ledger_pb2.EVENT_OUTCOME_UNSPECIFIED
    return ledger_pb2.EventOutcome.Value(f"EVENT_OUTCOME_{outcome.value}")


def outcome_from_message(message: ledger_pb2.EventOutcome.ValueType) -> Outcome | None:
    if message == ledger_pb2.EVENT_OUTCOME_UNSPECIFIED:
        return None
    return Outcome(ledger_pb2.EventOutcome.Name(message).removeprefix("EVENT_OUTCOME_"))


def state_to_message(state: PublicationState) -> ingestion_pb2.PublicationState.ValueType:
    return ingestion_pb2.PublicationState.Value(f"PUBLICATION_STATE_{state.value}")


def state_from_message(message: ingestion_pb2.PublicationState.ValueType) -> PublicationState:
    return PublicationState(ingestion_pb2.PublicationState.Name(message).removeprefix("PUBLICATION_STATE_"))
