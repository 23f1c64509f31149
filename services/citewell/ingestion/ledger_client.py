"""The worker's client of the ledger: the profiler's LedgerService over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from citewell.ingestion.logs.event_log import DeadLetter, Record
from citewell.ingestion.worker import ApplyTimedOut, Verdict
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import invoke
from citewell.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidField,
    MessageTooLarge,
    Unavailable,
    shorten,
)
from citewell.scholarly.limits import MAX_ID_BYTES
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition
from citewell.types.messages import check_event, position_from_message, position_to_message
from citewell.types.outcome_messages import outcome_from_message
from citewell.types.v1 import publication_pb2

NOT_AN_EVENT = "NOT_AN_EVENT"
PROBE_SECONDS = 10.0
"""How long the ledger may take to say that it works, after it did not apply a batch in time."""


class LedgerClient:
    """The ledger behind a channel. Records that cannot be sent to it, because they hold no event or one that is too
    large, are dead without asking it."""

    def __init__(self, channel: grpc.aio.Channel, apply_seconds: float) -> None:
        self._stub = ledger_pb2_grpc.LedgerServiceStub(channel)
        self._apply_seconds = apply_seconds

    async def apply(self, records: Sequence[Record]) -> list[Verdict]:
        verdicts: dict[LogPosition, Verdict] = {}
        request = ledger_pb2.ApplyPublicationsRequest()
        for record in records:
            try:
                event = parse_event(record.value)
                check_event(event)
            except DecodeError:
                message = f"{len(record.value)} bytes that are no PublicationEvent"
                verdicts[record.position] = _dead(record, NOT_AN_EVENT, message)
            except InvalidField as error:
                verdicts[record.position] = _dead(record, error.reason, error.message)
            else:
                request.events.append(
                    ledger_pb2.SourcedEvent(position=position_to_message(record.position), event=event)
                )
        if request.events:
            with _continued_traces(records):
                response = await self._apply(request)
            if len(response.results) != len(request.events):
                raise Internal(f"the ledger answered {len(response.results)} of {len(request.events)} events")
            for sourced, result in zip(request.events, response.results, strict=True):
                verdicts[position_from_message(sourced.position)] = _verdict(result, paper_id_of(sourced.event))
        return [verdicts[record.position] for record in records]

    async def _apply(self, request: ledger_pb2.ApplyPublicationsRequest) -> ledger_pb2.ApplyPublicationsResponse:
        try:
            with deadlines.within(self._apply_seconds):
                return await invoke(self._stub.ApplyPublications, request, "apply")  # type: ignore[no-any-return]
        except DeadlineExceeded as error:
            await self._require_answers(position_from_message(request.events[0].position))
            raise ApplyTimedOut(
                f"the ledger did not apply {len(request.events)} events within {self._apply_seconds:g} s"
            ) from error
        except MessageTooLarge as error:
            raise FailedPrecondition(
                f"{request.ByteSize()} bytes are more than one message may hold ({error.message}): "
                "raise MAX_MESSAGE_MEGABYTES of ingestion and profiler to at least 16",
                reason="MESSAGE_TOO_LARGE",
            ) from error

    async def _require_answers(self, position: LogPosition) -> None:
        """Raises Unavailable when the ledger does not even say what it knows of an event."""
        try:
            with deadlines.within(PROBE_SECONDS):
                await self.state(position, wait=False)
        except DeadlineExceeded as error:
            raise Unavailable("the ledger does not answer", stage="apply") from error

    async def record_dead(self, letters: Sequence[DeadLetter]) -> None:
        request = ledger_pb2.RecordDeadEventsRequest(
            events=[
                ledger_pb2.EventResult(
                    position=position_to_message(letter.record.position),
                    event_id=letter.event_id,
                    outcome=ledger_pb2.EVENT_OUTCOME_DEAD,
                    reason=letter.reason,
                    message=letter.message,
                )
                for letter in letters
            ]
        )
        with deadlines.within(self._apply_seconds):
            await invoke(self._stub.RecordDeadEvents, request, "record_dead")

    def names(self, record: Record) -> tuple[str, str]:
        """The ids of a record's event and of its paper; the position and the key for a record without."""
        try:
            event = parse_event(record.value)
        except DecodeError:
            return str(record.position), shorten(record.key, MAX_ID_BYTES)
        return event.event_id or str(record.position), shorten(paper_id_of(event), MAX_ID_BYTES)

    async def state(self, position: LogPosition, *, wait: bool) -> EventState:
        """What became of the event there; with `wait` the answer comes when it is searchable or dead."""
        request = ledger_pb2.GetEventStateRequest(position=position_to_message(position), wait=wait)
        response = await invoke(self._stub.GetEventState, request, "event_state", wait_for_ready=wait)
        return EventState(
            outcome_from_message(response.outcome), response.searchable, response.reason, response.message
        )


def parse_event(value: bytes) -> publication_pb2.PublicationEvent:
    """The event in a record's bytes, unknown fields kept; DecodeError when there is none."""
    event = publication_pb2.PublicationEvent.FromString(value)
    if event.WhichOneof("body") is None:
        raise DecodeError("neither a publication nor a retraction")
    return event


def paper_id_of(event: publication_pb2.PublicationEvent) -> str:
    """The id of the paper it tells of."""
    return event.publication.paper_id or event.retraction.paper_id


def _verdict(result: ledger_pb2.EventResult, paper_id: str) -> Verdict:
    outcome = outcome_from_message(result.outcome)
    if outcome is None:
        raise Internal(f"the ledger answered no outcome for event {result.event_id!r}")
    return Verdict(outcome, result.event_id, shorten(paper_id, MAX_ID_BYTES), result.reason, result.message)


def _dead(record: Record, reason: str, message: str) -> Verdict:
    """The verdict on a record that holds no usable event; its position stands for the event id."""
    return Verdict(Outcome.DEAD, str(record.position), shorten(record.key, MAX_ID_BYTES), reason, message)


@contextmanager
def _continued_traces(records: Sequence[Record]) -> Iterator[None]:
    """Opens a span that continues the records' traces, from their headers."""
    contexts = (telemetry.continued_trace(record.headers) for record in records)
    causes = [trace.get_current_span(context).get_span_context() for context in contexts]
    with telemetry.following("apply batch", causes, SpanKind.CONSUMER):
        yield
