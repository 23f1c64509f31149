"""RecordFeedback: checks what a writer chose, leaves out text that may not be kept, and hands it to ingestion."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.limits import MAX_ID_BYTES, MAX_TOP_K
from citewell.types.messages import query_from_message
from citewell.types.v1 import feedback_pb2


class Policy(Enum):
    """What is kept of feedback."""

    OFF = "off"
    CHOICES = "choices"
    TEXT = "text"

    @property
    def message(self) -> messages.FeedbackPolicy.ValueType:
        return messages.FeedbackPolicy.Value(f"FEEDBACK_POLICY_{self.name}")


class FeedbackSink(Protocol):
    """Keeps what writers chose."""

    async def record(self, feedback: feedback_pb2.Feedback, request_id: str) -> str:
        """Returns the event's id once it is durable."""


async def record_feedback(
    request: messages.RecordFeedbackRequest, policy: Policy, sink: FeedbackSink | None
) -> messages.RecordFeedbackResponse:
    """Answers when the feedback is durable."""
    if policy is Policy.OFF:
        raise FailedPrecondition(
            "this service records no feedback; CITEWELL_RECOMMENDER__FEEDBACK allows it", reason="FEEDBACK_OFF"
        )
    if sink is None:
        raise FailedPrecondition("no ingestion service is set up to record feedback", reason="NO_INGESTION")
    keep_text = policy is Policy.TEXT and request.keep_text and request.HasField("query")
    event_id = await sink.record(_feedback(request, keep_text=keep_text), request.request_id)
    return messages.RecordFeedbackResponse(event_id=event_id, text_kept=keep_text)


def _feedback(request: messages.RecordFeedbackRequest, *, keep_text: bool) -> feedback_pb2.Feedback:
    _require_ids("shown", request.shown)
    if not request.shown:
        raise InvalidField("shown", "", "the ids of the answer's items")
    for name, ids in (("chosen", request.chosen), ("dismissed", request.dismissed)):
        _require_ids(name, ids)
        if strange := sorted(set(ids) - set(request.shown)):
            raise InvalidField(name, strange[0], "ids that are among shown")
    if both := sorted(set(request.chosen) & set(request.dismissed)):
        raise InvalidField("dismissed", both[0], "ids that are not among chosen")
    snapshot = request.snapshot
    feedback = feedback_pb2.Feedback(
        shown=request.shown,
        chosen=request.chosen,
        dismissed=request.dismissed,
        answer=feedback_pb2.AnswerVersion(
            searchable=snapshot.searchable,
            encoder_hash=snapshot.encoder_hash,
            reranker_hash=snapshot.reranker_hash,
            settings_hash=snapshot.settings_hash,
            index_view=snapshot.index_view,
            exact=snapshot.exact,
            statistics=snapshot.statistics,
        ),
    )
    if keep_text:
        query = query_from_message(request.query, "query")
        feedback.text.context, feedback.text.title, feedback.text.abstract = query.context, query.title, query.abstract
    return feedback


def _require_ids(name: str, ids: Sequence[str]) -> None:
    if len(ids) > MAX_TOP_K:
        raise InvalidField(name, f"{len(ids)} ids", f"at most {MAX_TOP_K}")
    if len(set(ids)) < len(ids):
        raise InvalidField(name, "an id twice", "each id once")
    for number, each in enumerate(ids):
        if not 0 < len(each.encode()) <= MAX_ID_BYTES:
            raise InvalidField(f"{name}[{number}]", each, f"an id of 1 to {MAX_ID_BYTES} bytes")
