"""IngestionService: messages to the log, the worker and the ledger, and back."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from citewell import __version__
from citewell.ingestion import metrics
from citewell.ingestion.ledger_client import LedgerClient, parse_event
from citewell.ingestion.logs.event_log import DeadLetter, EventLog
from citewell.ingestion.logs.local.log import LocalLog
from citewell.ingestion.settings import IngestionSettings
from citewell.ingestion.tokens import decode_token, encode_token
from citewell.ingestion.v1 import ingestion_pb2, ingestion_pb2_grpc
from citewell.ingestion.worker import Pace, Worker
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import (
    CitewellError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidField,
    NotFound,
    Unavailable,
)
from citewell.runtime.health import Check
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import InvalidPublication, validate
from citewell.types import messages
from citewell.types.messages import position_to_message
from citewell.types.outcome_messages import state_to_message
from citewell.types.v1 import publication_pb2

_EVENT_IDS = uuid.UUID("5d6f1f0e-53a4-5b6a-9d0e-6c2f3c1d7a11")
"""Namespace of the event ids that are made from request ids."""
DEFAULT_PAGE, LARGEST_PAGE = 50, 1000
REPLAY_BATCH = 256
RETRY_START_SECONDS = 1.0
# Of the time left, the share given to waiting for an event; the rest is for saying how far it came.
WAIT_SHARE = 0.9

T = TypeVar("T")
_Answer: TypeAlias = ingestion_pb2.PublishResponse | ingestion_pb2.PublishError


class IngestionServer(ingestion_pb2_grpc.IngestionServiceServicer):
    """The service on one log. Runs a worker beside the handlers unless told otherwise."""

    grpc_services = ("citewell.ingestion.v1.IngestionService",)

    def __init__(self, settings: IngestionSettings) -> None:
        self._settings = settings
        self._log = open_log(settings)
        self._working: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> None:
        ingestion_pb2_grpc.add_IngestionServiceServicer_to_server(self, server)

    async def start(self) -> None:
        settings = self._settings
        self._channel = open_channel(settings.profiler_address, settings.client_tls, settings.max_message_megabytes)
        self._ledger = LedgerClient(self._channel, settings.pace.apply_seconds)
        pace = Pace(
            most_records=settings.pace.most_records,
            most_bytes=settings.pace.most_megabytes << 20,
            gather_seconds=settings.pace.gather_seconds,
            most_timeouts=settings.pace.most_timeouts,
            first_backoff_seconds=settings.pace.first_backoff_seconds,
            longest_backoff_seconds=settings.pace.longest_backoff_seconds,
        )
        self._worker = Worker(self._log, self._ledger, settings.log.group, pace)
        while True:
            try:
                await self._log.start()
                break
            except Unavailable as error:
                telemetry.logger.warning("log", error=error.message)
                await asyncio.sleep(RETRY_START_SECONDS)
        if settings.log.expected_id not in ("", self._log.log_id):
            raise FailedPrecondition(
                f"the log is {self._log.log_id}; the settings expect {settings.log.expected_id}", reason="LOG_REPLACED"
            )
        if settings.consume:
            self._working = asyncio.create_task(self._worker.run())

    async def check(self) -> None:
        if self._working is not None and self._working.done():
            raise Internal("the worker has ended")

    def dependencies(self) -> Mapping[str, Check]:
        async def log() -> None:
            metrics.observe(await self._log.partitions(self._settings.log.group))

        async def worker() -> None:
            self._worker.check()

        profiler = partial(require_serving, self._channel, "citewell.profiler.v1.LedgerService")
        return {"log": log, "profiler": profiler, "worker": worker}

    async def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._log.stop()
        await self._channel.close()

    async def Publish(self, request: ingestion_pb2.PublishRequest, context: Any) -> ingestion_pb2.PublishResponse:
        return await self._publish(request)

    async def PublishStream(
        self, requests: AsyncIterator[ingestion_pb2.PublishStreamRequest], context: Any
    ) -> AsyncIterator[ingestion_pb2.PublishStreamResponse]:
        # The stream is read on only while the window has room: a slow log slows its publisher down.
        window: asyncio.Queue[asyncio.Future[_Answer] | None] = asyncio.Queue(self._settings.stream_window)

        async def accept() -> None:
            try:
                async for request in requests:
                    await window.put(asyncio.create_task(self._publish_one(request.publish)))
                await window.put(None)
            except Exception as error:
                failed: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
                failed.set_exception(error)
                await window.put(failed)

        accepting = asyncio.create_task(accept())
        try:
            index = 0
            while (answer := await window.get()) is not None:
                yield _stream_response(index, await answer)
                index += 1
        finally:
            accepting.cancel()

    async def _publish_one(self, request: ingestion_pb2.PublishRequest) -> _Answer:
        try:
            return await self._publish(request)
        except CitewellError as error:
            field = error.field if isinstance(error, InvalidField) else ""
            return ingestion_pb2.PublishError(
                code=int(error.code), reason=error.reason, message=error.message, field=field
            )

    async def _publish(self, request: ingestion_pb2.PublishRequest) -> ingestion_pb2.PublishResponse:
        event = _event(request)
        if (size := event.ByteSize()) > (limit := self._settings.most_event_megabytes << 20):
            raise InvalidField("publication", f"{size} bytes", f"at most {limit} bytes", reason="EVENT_TOO_LARGE")
        return await self._append(request.publication.paper_id or request.retraction.paper_id, event)

    async def _append(self, key: str, event: publication_pb2.PublicationEvent) -> ingestion_pb2.PublishResponse:
        kind = event.WhichOneof("body") or ""
        body = event.publication if kind == "publication" else event.retraction
        headers = {"event-id": event.event_id, "revision": str(body.revision), **telemetry.trace_headers()}
        position = await _in_time(self._log.append(key, event.SerializeToString(), headers), "append")
        metrics.published.add(1, {"kind": kind})
        return _accepted(position, event.event_id)

    async def GetPublicationStatus(
        self, request: ingestion_pb2.GetPublicationStatusRequest, context: Any
    ) -> ingestion_pb2.GetPublicationStatusResponse:
        position, _ = decode_token(request.token)
        if position.log_id != self._log.log_id:
            raise FailedPrecondition(
                f"the token is of log {position.log_id}; this one is {self._log.log_id}", reason="LOG_REPLACED"
            )
        state = EventState(None)
        if request.wait:
            try:
                with deadlines.within(deadlines.budget("event_state") * WAIT_SHARE):
                    state = await self._ledger.state(position, wait=True)
            except DeadlineExceeded:
                pass  # the answer says how far the event has come
        if state.outcome is None:
            state = await self._ledger.state(position, wait=False)
        if state.outcome is None:  # the ledger has not seen it: it may be dead, or wait in the log
            letters = await _in_time(self._log.find_dead_letters([position]), "dead_letters")
            if letters:
                state = EventState(Outcome.DEAD, False, letters[0].reason, letters[0].message)
            else:
                await self._require_in_log(position, request.token)
        dead = state.outcome is Outcome.DEAD
        return ingestion_pb2.GetPublicationStatusResponse(
            state=state_to_message(state.publication_state),
            outcome=state.reason if dead else state.outcome or "",
            message=state.message,
        )

    async def _require_in_log(self, position: LogPosition, token: str) -> None:
        states = await _in_time(self._log.partitions(self._settings.log.group), "partitions")
        if position.partition >= len(states) or position.offset >= states[position.partition].end_offset:
            raise InvalidField("token", token, "a token of an event that this log holds", reason="INVALID_TOKEN")

    async def ListDeadLetters(
        self, request: ingestion_pb2.ListDeadLettersRequest, context: Any
    ) -> ingestion_pb2.ListDeadLettersResponse:
        if not 0 <= request.page_size <= LARGEST_PAGE:
            raise InvalidField("page_size", request.page_size, f"0 (the default, {DEFAULT_PAGE}) to {LARGEST_PAGE}")
        size = request.page_size or DEFAULT_PAGE
        after = decode_token(request.page_token, "page_token")[0] if request.page_token else None
        letters = await _in_time(self._log.dead_letters(after, size + 1), "dead_letters")
        response = ingestion_pb2.ListDeadLettersResponse(dead_letters=map(_letter_to_message, letters[:size]))
        if len(letters) > size:
            response.next_page_token = encode_token(letters[size - 1].record.position, "")
        return response

    async def RedriveDeadLetters(
        self, request: ingestion_pb2.RedriveDeadLettersRequest, context: Any
    ) -> ingestion_pb2.RedriveDeadLettersResponse:
        positions = [_position_of(letter_id, f"ids[{n}]") for n, letter_id in enumerate(request.ids)]
        letters = await _in_time(self._log.find_dead_letters(positions), "dead_letters")
        found = {letter.record.position for letter in letters}
        for letter_id, position in zip(request.ids, positions, strict=True):
            if position not in found:
                raise NotFound(f"there is no dead letter {letter_id!r}", reason="NO_SUCH_DEAD_LETTER")
        response = ingestion_pb2.RedriveDeadLettersResponse()
        for letter in letters:
            response.published.append(await self._redrive(letter, request.request_id))
        return response

    async def _redrive(self, letter: DeadLetter, request_id: str) -> ingestion_pb2.PublishResponse:
        """A new event with the same body, so that the ledger judges it anew."""
        try:
            event = parse_event(letter.record.value)
        except DecodeError:
            raise FailedPrecondition(
                f"dead letter {letter.record.position} holds no event that could be published again",
                reason=letter.reason,
            ) from None
        event.event_id = _event_id(request_id, str(letter.record.position).encode())
        return await self._append(letter.record.key, event)

    async def Replay(self, request: ingestion_pb2.ReplayRequest, context: Any) -> ingestion_pb2.ReplayResponse:
        response = ingestion_pb2.ReplayResponse()
        for partition, first, end in await self._ranges(request):
            while first < end:
                records = await _in_time(self._log.read(partition, first, end, REPLAY_BATCH), "read")
                if not records:
                    break
                for outcome in await _in_time(self._worker.deliver(records), "apply"):
                    response.delivered += 1
                    response.applied += outcome is Outcome.APPLIED
                    response.duplicates += outcome is Outcome.DUPLICATE
                    response.superseded += outcome is Outcome.SUPERSEDED
                    response.dead += outcome is Outcome.DEAD
                first = records[-1].position.offset + 1
        return response

    async def _ranges(self, request: ingestion_pb2.ReplayRequest) -> list[tuple[int, int, int]]:
        """(partition, first offset, end offset) of what is to be delivered again."""
        states = await _in_time(self._log.partitions(self._settings.log.group), "partitions")
        match request.WhichOneof("range"):
            case "offsets":
                asked = request.offsets
                if not 0 <= asked.partition < len(states):
                    raise InvalidField("offsets.partition", asked.partition, f"0 to {len(states) - 1}")
                state = states[asked.partition]
                if not state.first_offset <= asked.first <= state.end_offset:
                    raise InvalidField("offsets.first", asked.first, f"{state.first_offset} to {state.end_offset}")
                if asked.end < asked.first:
                    raise InvalidField("offsets.end", asked.end, f"at least offsets.first, {asked.first}")
                return [(asked.partition, asked.first, min(asked.end, state.end_offset))]
            case "times":
                times = [_time(request.times, name) for name in ("first", "end")]
                if times[1] < times[0]:
                    raise InvalidField("times.end", times[1].isoformat(), "a time not before times.first")
                return [
                    (
                        partition,
                        await self._log.offset_at(partition, times[0]),
                        await self._log.offset_at(partition, times[1]),
                    )
                    for partition in range(len(states))
                ]
            case _:
                raise InvalidField("range", "", "offsets or times")

    async def Info(self, request: ingestion_pb2.InfoRequest, context: Any) -> ingestion_pb2.InfoResponse:
        states = await _in_time(self._log.partitions(self._settings.log.group), "partitions")
        return ingestion_pb2.InfoResponse(
            version=__version__,
            log_id=self._log.log_id,
            log_kind=self._log.kind,
            partitions=[
                ingestion_pb2.PartitionInfo(
                    partition=state.partition,
                    first_offset=state.first_offset,
                    end_offset=state.end_offset,
                    committed_offset=state.committed_offset,
                )
                for state in states
            ],
            dead_letters=await _in_time(self._log.count_dead_letters(), "dead_letters"),
        )


def open_log(settings: IngestionSettings) -> EventLog:
    """The log that the settings name, not started yet."""
    log = settings.log
    if log.kind == "kafka":
        from citewell.ingestion.logs.kafka.log import KafkaLog  # the embedded set-up does without its client

        return KafkaLog(log.kafka)
    return LocalLog(settings.data / "log.sqlite", partitions=log.partitions, owner_wait_seconds=log.owner_wait_seconds)


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
    event.event_id = _event_id(request.request_id, event.SerializeToString(deterministic=True))
    return event


def _event_id(request_id: str, content: bytes) -> str:
    """The same for a repeated request, also on another replica; another content is never mistaken for it."""
    if not request_id:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_EVENT_IDS, f"{request_id}\n{hashlib.sha256(content).hexdigest()}"))


def _stream_response(index: int, answer: _Answer) -> ingestion_pb2.PublishStreamResponse:
    if isinstance(answer, ingestion_pb2.PublishError):
        return ingestion_pb2.PublishStreamResponse(index=index, error=answer)
    return ingestion_pb2.PublishStreamResponse(index=index, accepted=answer)


def _accepted(position: LogPosition, event_id: str) -> ingestion_pb2.PublishResponse:
    return ingestion_pb2.PublishResponse(
        event_id=event_id, position=position_to_message(position), token=encode_token(position, event_id)
    )


def _letter_to_message(letter: DeadLetter) -> ingestion_pb2.DeadLetter:
    recorded = Timestamp()
    recorded.FromDatetime(letter.recorded)
    return ingestion_pb2.DeadLetter(
        id=str(letter.record.position),
        position=position_to_message(letter.record.position),
        event_id=letter.event_id,
        paper_id=letter.paper_id,
        reason=letter.reason,
        message=letter.message,
        recorded=recorded,
    )


def _position_of(letter_id: str, field: str) -> LogPosition:
    try:
        return LogPosition.parse(letter_id)
    except ValueError:
        raise InvalidField(field, letter_id, "a dead letter's id as ListDeadLetters answers it") from None


def _time(times: ingestion_pb2.TimeRange, name: str) -> datetime:
    stamp: Timestamp = getattr(times, name)
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidField(f"times.{name}", stamp.seconds, f"a time ({error})") from None


async def _in_time(work: Awaitable[T], stage: str) -> T:
    """The work's result within what is left of the call's time."""
    seconds = deadlines.remaining() - deadlines.MARGIN_SECONDS
    try:
        return await asyncio.wait_for(work, None if seconds == float("inf") else max(seconds, 0.0))
    except TimeoutError:
        raise DeadlineExceeded(f"the time ended during {stage}", stage=stage) from None
