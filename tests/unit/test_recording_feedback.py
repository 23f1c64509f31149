"""RecordFeedback: what is kept under each policy, and what is refused."""

from __future__ import annotations

import pytest

from citewell.recommender.feedback import Policy, record_feedback
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.types.v1 import feedback_pb2


class Kept:
    """Keeps feedback in memory."""

    def __init__(self) -> None:
        self.events: list[feedback_pb2.Feedback] = []

    async def record(self, feedback: feedback_pb2.Feedback, request_id: str) -> str:
        self.events.append(feedback)
        return f"event-{request_id}"


def request(**changes: object) -> messages.RecordFeedbackRequest:
    told: dict[str, object] = {
        "shown": ["a", "b"],
        "chosen": ["a"],
        "dismissed": ["b"],
        "snapshot": messages.Snapshot(index_view="v1", statistics="s"),
        "query": messages.Query(context="My secret TARGETCIT.", title="Draft"),
        "keep_text": True,
        "request_id": "r",
    }
    return messages.RecordFeedbackRequest(**{**told, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "consent", "kept"),
    [
        (Policy.CHOICES, True, False),
        (Policy.CHOICES, False, False),
        (Policy.TEXT, False, False),
        (Policy.TEXT, True, True),
    ],
)
async def test_text_is_kept_only_if_writer_and_service_agree(policy: Policy, consent: bool, kept: bool) -> None:
    sink = Kept()
    answer = await record_feedback(request(keep_text=consent), policy, sink)
    assert (answer.event_id, answer.text_kept) == ("event-r", kept)
    [event] = sink.events
    assert (list(event.shown), list(event.chosen), list(event.dismissed)) == (["a", "b"], ["a"], ["b"])
    assert (event.answer.index_view, event.answer.statistics) == ("v1", "s")
    assert (b"secret" in event.SerializeToString()) is kept


async def test_a_service_that_is_off_keeps_nothing() -> None:
    sink = Kept()
    with pytest.raises(FailedPrecondition, match="CITEWELL_RECOMMENDER__FEEDBACK") as error:
        await record_feedback(request(), Policy.OFF, sink)
    assert error.value.reason == "FEEDBACK_OFF"
    assert not sink.events


async def test_without_ingestion_it_says_so() -> None:
    with pytest.raises(FailedPrecondition, match="no ingestion"):
        await record_feedback(request(), Policy.TEXT, None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shown": [], "chosen": [], "dismissed": []}, "shown"),
        ({"chosen": ["c"]}, "chosen"),
        ({"dismissed": ["a"]}, "dismissed"),
        ({"shown": ["a", "a", "b"]}, "shown"),
        ({"shown": ["a", "b", ""]}, r"shown\[2\]"),
        ({"shown": [*"ab", *map(str, range(100))]}, "shown"),
        ({"query": messages.Query(context="TARGETCIT and TARGETCIT")}, r"query\.context"),
    ],
)
async def test_wrong_requests_name_the_field(changes: dict[str, object], field: str) -> None:
    sink = Kept()
    with pytest.raises(InvalidField, match=field):
        await record_feedback(request(**changes), Policy.TEXT, sink)
    assert not sink.events
