"""LedgerService: messages to the ledger's words and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from citewell.profiler.ledger.encoding import SuppliedVector
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.progress import EventState
from citewell.profiler.ledger.rules import Outcome, Position, Result, SourcedEvent
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc
from citewell.profiler.watermarks import Watermarks
from citewell.runtime import deadlines
from citewell.runtime.errors import InvalidField
from citewell.types.messages import event_from_message
from citewell.types.v1 import publication_pb2

# An answer to a waiting caller leaves so much of its time for the way home.
HOME_SECONDS = 0.05

_OUTCOMES = {
    Outcome.APPLIED: ledger_pb2.EVENT_OUTCOME_APPLIED,
    Outcome.DUPLICATE: ledger_pb2.EVENT_OUTCOME_DUPLICATE,
    Outcome.SUPERSEDED: ledger_pb2.EVENT_OUTCOME_SUPERSEDED,
    Outcome.DEAD: ledger_pb2.EVENT_OUTCOME_DEAD,
}


class LedgerHandlers(ledger_pb2_grpc.LedgerServiceServicer):
    """Handlers; `changed` is called when there is something to project."""

    def __init__(self, ledger: Ledger, watermarks: Watermarks, changed: Callable[[], None]) -> None:
        self._ledger, self._watermarks, self._changed = ledger, watermarks, changed

    async def ApplyPublications(
        self, request: ledger_pb2.ApplyPublicationsRequest, context: Any
    ) -> ledger_pb2.ApplyPublicationsResponse:
        results = await self._apply(
            [(message.event, message.position if message.HasField("position") else None) for message in request.events]
        )
        return ledger_pb2.ApplyPublicationsResponse(results=[_result_message(result) for result in results])

    async def LoadPublications(
        self, request_iterator: AsyncIterator[ledger_pb2.LoadPublicationsRequest], context: Any
    ) -> ledger_pb2.LoadPublicationsResponse:
        total = ledger_pb2.LoadPublicationsResponse()
        async for request in request_iterator:
            for result in await self._apply([(event, None) for event in request.events]):
                match result.outcome:
                    case Outcome.APPLIED:
                        total.applied += 1
                    case Outcome.DUPLICATE:
                        total.duplicates += 1
                    case Outcome.SUPERSEDED:
                        total.superseded += 1
                    case Outcome.DEAD:
                        total.rejected.append(_result_message(result))
        return total

    async def GetEventState(
        self, request: ledger_pb2.GetEventStateRequest, context: Any
    ) -> ledger_pb2.GetEventStateResponse:
        key: str | Position = request.event_id
        if request.WhichOneof("key") == "position":
            key = _position(request.position)
        elif not key:
            raise InvalidField("key", "", "an event id or a position")
        state = await self._watermarks.until(
            lambda: self._ledger.event_state(key),
            lambda state: state.searchable or state.outcome is Outcome.DEAD or not request.wait,
            min(deadlines.budget("wait for the event") - HOME_SECONDS, 3600.0),
        )
        return _state_message(state)

    async def RecordDeadEvents(
        self, request: ledger_pb2.RecordDeadEventsRequest, context: Any
    ) -> ledger_pb2.RecordDeadEventsResponse:
        results = [
            Result(
                Outcome.DEAD,
                event.event_id,
                _position(event.position) if event.HasField("position") else None,
                event.reason,
                event.message,
            )
            for event in request.events
        ]
        await asyncio.to_thread(self._ledger.record_dead, results)
        self._watermarks.changed()
        return ledger_pb2.RecordDeadEventsResponse()

    async def _apply(
        self, messages: Sequence[tuple[publication_pb2.PublicationEvent, publication_pb2.LogPosition | None]]
    ) -> list[Result]:
        results = await asyncio.to_thread(self._translate_and_apply, messages)
        self._changed()
        return results

    def _translate_and_apply(
        self, messages: Sequence[tuple[publication_pb2.PublicationEvent, publication_pb2.LogPosition | None]]
    ) -> list[Result]:
        """In a thread: large batches take long to translate too. What cannot be read is dead, like what is invalid."""
        results: list[Result | None] = []
        events: list[IncomingEvent] = []
        for message, place in messages:
            position = _position(place) if place is not None else None
            try:
                event = event_from_message(message)
            except InvalidField as error:
                results.append(
                    Result(
                        Outcome.DEAD,
                        message.event_id,
                        position,
                        error.reason,
                        error.message,
                    )
                )
                continue
            vectors = tuple(
                SuppliedVector(vector.text_hash, vector.model_hash, vector.values)
                for vector in message.publication.vectors
            )
            results.append(None)
            events.append(IncomingEvent(SourcedEvent(event, position), vectors))
        applied = iter(self._ledger.apply(events) if events else ())
        return [result or next(applied) for result in results]


def _position(message: publication_pb2.LogPosition) -> Position:
    return Position(message.log_id, message.partition, message.offset)


def position_message(position: Position) -> publication_pb2.LogPosition:
    return publication_pb2.LogPosition(log_id=position.log_id, partition=position.partition, offset=position.offset)


def _result_message(result: Result) -> ledger_pb2.EventResult:
    return ledger_pb2.EventResult(
        position=position_message(result.position) if result.position else None,
        event_id=result.event_id,
        outcome=_OUTCOMES[result.outcome],
        reason=result.reason,
        message=result.message,
    )


def _state_message(state: EventState) -> ledger_pb2.GetEventStateResponse:
    return ledger_pb2.GetEventStateResponse(
        outcome=_OUTCOMES[state.outcome] if state.outcome else ledger_pb2.EVENT_OUTCOME_UNSPECIFIED,
        searchable=state.searchable,
        reason=state.reason,
        message=state.message,
    )
