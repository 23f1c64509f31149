"""Feedback of writers: an event log of its own, opened when feedback is recorded or listed for the first time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from citewell.ingestion.logs.event_log import EventLog, PartitionState, Record
from citewell.ingestion.publishing import event_id_of
from citewell.ingestion.tokens import decode_token, encode_token
from citewell.ingestion.v1 import ingestion_pb2
from citewell.runtime.deadlines import in_time
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.runtime.telemetry import logger
from citewell.scholarly.positions import LogPosition
from citewell.types.v1 import feedback_pb2

MOST_BYTES = 1 << 20
"""Largest size of an event. A hundred ids and the text of a query are far smaller."""
DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
FEEDBACK_GROUP = "citewell-feedback"
"""The consumer group with which the log is asked for its partitions. No consumer joins it."""


class FeedbackLog:
    """Records feedback and lists it. Most deployments record none, and so never open the log."""

    def __init__(self, make: Callable[[], EventLog]) -> None:
        self._make = make
        self._opening = asyncio.Lock()
        self._log: EventLog | None = None

    async def record(self, request: ingestion_pb2.RecordFeedbackRequest) -> ingestion_pb2.RecordFeedbackResponse:
        """Answers when the event is durable."""
        feedback = feedback_pb2.Feedback()
        feedback.CopyFrom(request.feedback)
        if not feedback.shown:
            raise InvalidField("feedback.shown", "", "the ids that were shown")
        feedback.ClearField("recorded")
        feedback.ClearField("event_id")
        feedback.event_id = event_id_of(request.request_id, feedback.SerializeToString(deterministic=True))
        feedback.recorded.FromDatetime(datetime.now(UTC))
        value = feedback.SerializeToString()
        if len(value) > MOST_BYTES:
            raise InvalidField("feedback", f"{len(value)} bytes", f"at most {MOST_BYTES} bytes")
        log = await self._opened()
        await in_time(log.append(feedback.event_id, value, {"event-id": feedback.event_id}), "append")
        return ingestion_pb2.RecordFeedbackResponse(event_id=feedback.event_id)

    async def list(self, request: ingestion_pb2.ListFeedbackRequest) -> ingestion_pb2.ListFeedbackResponse:
        """A page, partition by partition in the order of each."""
        if not 0 <= request.page_size <= LARGEST_PAGE:
            raise InvalidField("page_size", request.page_size, f"0 (the default, {DEFAULT_PAGE}) to {LARGEST_PAGE}")
        log = await self._opened()
        states = await in_time(log.partitions(FEEDBACK_GROUP), "partitions")
        start = _start(log, states, request.page_token)
        response = ingestion_pb2.ListFeedbackResponse()
        wanted = request.page_size or DEFAULT_PAGE
        for state in states[start.partition :]:
            first = max(start.offset if state.partition == start.partition else 0, state.first_offset)
            while first < state.end_offset:
                if len(response.feedback) == wanted:
                    response.next_page_token = encode_token(LogPosition(log.log_id, state.partition, first), "")
                    return response
                most = wanted - len(response.feedback)
                records = await in_time(log.read(state.partition, first, state.end_offset, most), "read")
                response.feedback.extend(_parsed(records))
                first = records[-1].position.offset + 1 if records else state.end_offset
        return response

    async def stop(self) -> None:
        """Closes the log if it was opened."""
        if self._log is not None:
            await self._log.stop()
            self._log = None

    async def _opened(self) -> EventLog:
        async with self._opening:
            if self._log is None:
                log = self._make()
                try:
                    await in_time(log.start(), "open the feedback log")
                except BaseException:
                    await log.stop()
                    raise
                self._log = log
        return self._log


def _start(log: EventLog, states: list[PartitionState], token: str) -> LogPosition:
    if not token:
        return LogPosition(log.log_id, 0, 0)
    position = decode_token(token, "page_token")[0]
    if position.log_id != log.log_id:
        raise FailedPrecondition(
            f"the page token is of log {position.log_id}; this one is {log.log_id}", reason="LOG_REPLACED"
        )
    if position.partition >= len(states):
        raise InvalidField("page_token", token, "a token as ListFeedback answers it", reason="INVALID_TOKEN")
    return position


def _parsed(records: Sequence[Record]) -> list[feedback_pb2.Feedback]:
    """The feedback in these records. Records of other programs are left out with a warning."""
    found, foreign = [], []
    for record in records:
        try:
            feedback = feedback_pb2.Feedback.FromString(record.value)
        except DecodeError:
            feedback = feedback_pb2.Feedback()
        if feedback.shown:
            found.append(feedback)
        else:  # `record` appends none without shown papers
            foreign.append(str(record.position))
    if foreign:
        logger.warning("records that are no feedback were left out", records=len(foreign), first=foreign[0])
    return found
