"""What the recommender asks of ingestion: whether published events are searchable, and to keep feedback."""

from __future__ import annotations

import grpc

from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.runtime.channels import invoke
from citewell.runtime.errors import FailedPrecondition, InvalidField, shorten
from citewell.types.v1 import feedback_pb2

_NOT_YET = {
    messages.PUBLICATION_STATE_ACCEPTED: "it is in the log, and ingestion and the profiler have yet to apply it",
    messages.PUBLICATION_STATE_APPLIED: "it is applied, and the profiler has yet to write it to the index",
}


class IngestionClient:
    """Watermarks and feedback over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = IngestionServiceStub(channel)

    async def wait(self, token: str, seconds: float) -> None:
        """Returns when the token's event is searchable; FailedPrecondition when it is not in time, or never will be."""
        request = messages.GetPublicationStatusRequest(token=token, wait=True)
        event = f"options.min_watermark: the event of {shorten(token)!r}"
        try:
            answer: messages.GetPublicationStatusResponse = await invoke(
                self._stub.GetPublicationStatus, request, "watermark", at_most=seconds
            )
        except InvalidField:
            raise InvalidField(
                "options.min_watermark", token, "a token that Publish answered", reason="BAD_TOKEN"
            ) from None
        except FailedPrecondition as error:
            raise FailedPrecondition(f"{event}: {error.message}", reason=error.reason, **error.metadata) from None
        if answer.state == messages.PUBLICATION_STATE_DEAD:
            raise FailedPrecondition(
                f"{event} is a dead letter: {answer.outcome}, {answer.message}", reason="EVENT_DEAD"
            )
        if answer.state != messages.PUBLICATION_STATE_SEARCHABLE:
            raise FailedPrecondition(
                f"{event} was not searchable in time: {_NOT_YET.get(answer.state, 'its state is not known')}; "
                "ask again, or with a longer deadline",
                reason="WATERMARK_NOT_REACHED",
            )

    async def record(self, feedback: feedback_pb2.Feedback, request_id: str) -> str:
        """Returns the event's id once it is durable."""
        request = messages.RecordFeedbackRequest(feedback=feedback, request_id=request_id)
        answer: messages.RecordFeedbackResponse = await invoke(self._stub.RecordFeedback, request, "feedback")
        return answer.event_id
