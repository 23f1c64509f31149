"""Positions, outcomes and states convert between text, messages and domain without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2
from citewell.scholarly.outcomes import EventState, Outcome, PublicationState
from citewell.scholarly.positions import LogPosition
from citewell.types.messages import position_from_message, position_to_message
from citewell.types.outcome_messages import (
    outcome_from_message,
    outcome_to_message,
    state_from_message,
    state_to_message,
)

POSITIONS = st.builds(LogPosition, st.text(), st.integers(0, (1 << 31) - 1), st.integers(0, 10**18 - 1))


@given(POSITIONS)
def test_a_position_is_read_as_it_was_written(position: LogPosition) -> None:
    assert LogPosition.parse(str(position)) == position
    assert position_from_message(position_to_message(position)) == position


@pytest.mark.parametrize("text", ["", "log", "log-1", "log-x-1", "log-1-x", "log-1-" + "9" * 19])
def test_other_text_is_no_position(text: str) -> None:
    with pytest.raises(ValueError, match="is not a log position"):
        LogPosition.parse(text)


def test_every_outcome_and_state_of_the_contracts_has_a_name_here() -> None:
    outcomes = ledger_pb2.EventOutcome.values()
    assert [outcome_to_message(outcome_from_message(each)) for each in outcomes] == outcomes
    assert {outcome_from_message(each) for each in outcomes} == {None, *Outcome}
    states = [each for each in ingestion_pb2.PublicationState.values() if each]
    assert [state_to_message(state_from_message(each)) for each in states] == states
    assert {state_from_message(each) for each in states} == set(PublicationState)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (EventState(None), PublicationState.ACCEPTED),
        (EventState(Outcome.APPLIED), PublicationState.APPLIED),
        (EventState(Outcome.SUPERSEDED, searchable=True), PublicationState.SEARCHABLE),
        (EventState(Outcome.DEAD), PublicationState.DEAD),
    ],
)
def test_an_event_tells_how_far_its_publication_is(event: EventState, state: PublicationState) -> None:
    assert event.publication_state is state
