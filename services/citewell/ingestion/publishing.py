"""Puts events into the log: one at a time, and as a stream with an answer for each."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from opentelemetry.trace import SpanKind

from citewell.ingestion import metrics
from citewell.ingestion.logs.event_log import EventLog
from citewell.ingestion.tokens import encode_token
from citewell.ingestion.v1 import ingestion_pb2
from citewell.runtime import telemetry
from citewell.runtime.deadlines import in_time
from citewell.runtime.errors import CitewellError, InvalidField, Overloaded
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import InvalidPublication, validate
from citewell.types import messages
from citewell.types.v1 import publication_pb2

_EVENT_IDS = uuid.UUID("5d6f1f0e-53a4-5b6a-9d0e-6c2f3c1d7a11")
"""Namespace of the event ids that are made from request ids."""
_STREAMED = "publish."
"""Where a PublishStreamRequest holds its event. Errors in a stream name fields as errors of Publish do."""

_Answer: TypeAlias = ingestion_pb2.PublishResponse | ingestion_pb2.PublishError


class Publisher:
    """Publishes into one log. A stream is read on only while its events that wait for the log fit the window."""

    def __init__(self, log: EventLog, most_event_bytes: int, window_events: int, window_bytes: int) -> None:
        self._log, self._most_event_bytes = log, most_event_bytes
        self._window_events, self._window_bytes = window_events, window_bytes

    async def publish(self, request: ingestion_pb2.PublishRequest) -> ingestion_pb2.PublishResponse:
        """Answers when the event is durable."""
        event = _event(request)
        if (size := event.ByteSize()) > self._most_event_bytes:
            raise InvalidField(
                event.WhichOneof("body") or "body",
                f"{size} bytes",
                f"at most {self._most_event_bytes} bytes",
                reason="EVENT_TOO_LARGE",
            )
        return await self.append(request.publication.paper_id or request.retraction.paper_id, event)

    async def append(self, key: str, event: publication_pb2.PublicationEvent) -> ingestion_pb2.PublishResponse:
        """Appends an event that is known to be valid, or is to be judged by the ledger."""
        kind = event.WhichOneof("body") or ""
        body = event.publication if kind == "publication" else event.retraction
        with telemetry.span("append", None, SpanKind.PRODUCER):
            headers = {"event-id": event.event_id, "revision": str(body.revision), **telemetry.trace_headers()}
            position = await in_time(self._log.append(key, event.SerializeToString(), headers), "append")
        metrics.published.add(1, {"kind": kind})
        return _accepted(position, event.event_id)

    async def publish_each(
        self, requests: AsyncIterator[ingestion_pb2.PublishStreamRequest]
    ) -> AsyncIterator[ingestion_pb2.PublishStreamResponse]:
        """One answer a request, in order. A request that is refused, or cannot be parsed, does not end the stream."""
        window = _Window(self._window_events, self._window_bytes)

        async def read() -> None:
            try:
                while True:
                    try:
                        request = await anext(requests)
                    except StopAsyncIteration:
                        break
                    except InvalidField as error:  # it cannot be parsed
                        await window.make_room(0)
                        window.add(_settled(_refusal(error)), 0)
                    else:
                        size = request.ByteSize()
                        await window.make_room(size)
                        window.add(asyncio.create_task(self._answer(request.publish)), size)
                window.add(None, 0)
            except Exception as error:
                window.add(_failed(error), 0)

        reading = asyncio.create_task(read())
        try:
            index = 0
            while (answer := await window.get()) is not None:
                yield _stream_response(index, answer)
                index += 1
        finally:
            reading.cancel()

    async def _answer(self, request: ingestion_pb2.PublishRequest) -> _Answer:
        try:
            return await self.publish(request)
        except CitewellError as error:
            # Its frames hold the event, and may hold the error: without this the event waits for garbage collection.
            error.__traceback__ = None
            return _refusal(error)


class _Window:
    """The events of a stream that are not answered yet, in order."""

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._answers: asyncio.Queue[tuple[Awaitable[_Answer] | None, int]] = asyncio.Queue()
        self._events = self._bytes = 0
        self._shrunk = asyncio.Event()

    async def make_room(self, size: int) -> None:
        """Returns when an event of so many bytes fits; one larger than the window fits an empty one."""
        while self._events and (self._events >= self._most_events or self._bytes + size > self._most_bytes):
            self._shrunk.clear()
            await self._shrunk.wait()

    def add(self, answer: Awaitable[_Answer] | None, size: int) -> None:
        """Adds an answer that is to come; None is the end."""
        self._events += 1
        self._bytes += size
        self._answers.put_nowait((answer, size))

    async def get(self) -> _Answer | None:
        """The next answer, once it has come; None at the end."""
        coming, size = await self._answers.get()
        answer = None if coming is None else await coming
        self._events -= 1
        self._bytes -= size
        self._shrunk.set()
        return answer


def event_id_of(request_id: str, content: bytes) -> str:
    """The same id for a repeated request, also on another replica. Another content never gets it."""
    if not request_id:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_EVENT_IDS, f"{request_id}\n{hashlib.sha256(content).hexdigest()}"))


def _event(request: ingestion_pb2.PublishRequest) -> publication_pb2.PublicationEvent:
    """The event to be logged: what was sent, whole, unknown fields too; or InvalidField."""
    event = publication_pb2.PublicationEvent()
    kind = request.WhichOneof("body")
    if kind == "publication":
        event.publication.CopyFrom(request.publication)
    elif kind == "retraction":
        event.retraction.CopyFrom(request.retraction)
    else:
        raise InvalidField("body", "", "a publication or a retraction")
    try:
        validate(messages.event_from_message(event).body)
    except InvalidPublication as error:
        raise InvalidField(f"{kind}.{error.field}", error.value, error.expected) from None
    content = event.SerializeToString(deterministic=True) if request.request_id else b""
    event.event_id = event_id_of(request.request_id, content)
    return event


def _accepted(position: LogPosition, event_id: str) -> ingestion_pb2.PublishResponse:
    return ingestion_pb2.PublishResponse(
        event_id=event_id, position=messages.position_to_message(position), token=encode_token(position, event_id)
    )


def _refusal(error: CitewellError) -> ingestion_pb2.PublishError:
    field = error.field.removeprefix(_STREAMED) if isinstance(error, InvalidField) else ""
    refusal = ingestion_pb2.PublishError(
        code=int(error.code), reason=error.reason, message=error.message.removeprefix(_STREAMED), field=field
    )
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        refusal.retry_delay.CopyFrom(delay)
    return refusal


def _stream_response(index: int, answer: _Answer) -> ingestion_pb2.PublishStreamResponse:
    if isinstance(answer, ingestion_pb2.PublishError):
        return ingestion_pb2.PublishStreamResponse(index=index, error=answer)
    return ingestion_pb2.PublishStreamResponse(index=index, accepted=answer)


def _settled(answer: _Answer) -> asyncio.Future[_Answer]:
    future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def _failed(error: Exception) -> asyncio.Future[_Answer]:
    future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
