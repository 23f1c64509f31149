"""IngestionService: messages to the log, the worker and the ledger, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import grpc

from citewell import __version__
from citewell.ingestion import metrics
from citewell.ingestion.dead_letters import list_dead_letters, redrive
from citewell.ingestion.feedback import FeedbackLog
from citewell.ingestion.ledger_client import LedgerClient
from citewell.ingestion.logs.event_log import EventLog
from citewell.ingestion.logs.local.log import LocalLog
from citewell.ingestion.publishing import Publisher
from citewell.ingestion.replay import replay
from citewell.ingestion.settings import IngestionSettings
from citewell.ingestion.tokens import decode_token
from citewell.ingestion.v1 import ingestion_pb2, ingestion_pb2_grpc
from citewell.ingestion.worker import Pace, Worker
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.deadlines import in_time
from citewell.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidField,
    Unavailable,
)
from citewell.runtime.health import Check
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition
from citewell.types.outcome_messages import state_to_message

RETRY_START_SECONDS = 1.0
# Of the time left, the share given to waiting for an event; the rest is for saying how far it came.
WAIT_SHARE = 0.9


class IngestionServer(ingestion_pb2_grpc.IngestionServiceServicer):
    """The service on one log. Runs a worker beside the handlers unless told otherwise."""

    grpc_services = ("citewell.ingestion.v1.IngestionService",)

    def __init__(self, settings: IngestionSettings) -> None:
        self._settings = settings
        self._log = open_log(settings)
        self._publisher = Publisher(
            self._log,
            settings.most_event_megabytes << 20,
            settings.stream_window,
            settings.stream_window_megabytes << 20,
        )
        self._feedback = FeedbackLog(partial(open_feedback_log, settings))
        self._working: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> None:
        ingestion_pb2_grpc.add_IngestionServiceServicer_to_server(self, server)

    async def start(self) -> None:
        settings = self._settings
        self._channel = open_channel(
            settings.profiler_address, settings.client_tls, settings.max_message_megabytes, settings.client_token
        )
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
            states = await self._log.partitions(self._settings.log.group)
            metrics.observe(states, await self._log.count_dead_letters())

        async def worker() -> None:
            self._worker.check()

        profiler = partial(require_serving, self._channel, "citewell.profiler.v1.LedgerService")
        return {"log": log, "profiler": profiler, "worker": worker}

    async def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._feedback.stop()
        await self._log.stop()
        await self._channel.close()

    async def Publish(self, request: ingestion_pb2.PublishRequest, context: Any) -> ingestion_pb2.PublishResponse:
        return await self._publisher.publish(request)

    async def PublishStream(
        self, requests: AsyncIterator[ingestion_pb2.PublishStreamRequest], context: Any
    ) -> AsyncIterator[ingestion_pb2.PublishStreamResponse]:
        async for response in self._publisher.publish_each(requests):
            yield response

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
            letters = await in_time(self._log.find_dead_letters([position]), "dead_letters")
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
        states = await in_time(self._log.partitions(self._settings.log.group), "partitions")
        if position.partition >= len(states) or position.offset >= states[position.partition].end_offset:
            raise InvalidField("token", token, "a token of an event that this log holds", reason="INVALID_TOKEN")

    async def ListDeadLetters(
        self, request: ingestion_pb2.ListDeadLettersRequest, context: Any
    ) -> ingestion_pb2.ListDeadLettersResponse:
        return await list_dead_letters(self._log, request)

    async def RedriveDeadLetters(
        self, request: ingestion_pb2.RedriveDeadLettersRequest, context: Any
    ) -> ingestion_pb2.RedriveDeadLettersResponse:
        return await redrive(self._log, self._publisher, request)

    async def Replay(self, request: ingestion_pb2.ReplayRequest, context: Any) -> ingestion_pb2.ReplayResponse:
        return await replay(self._log, self._worker, self._settings.log.group, request)

    async def RecordFeedback(
        self, request: ingestion_pb2.RecordFeedbackRequest, context: Any
    ) -> ingestion_pb2.RecordFeedbackResponse:
        return await self._feedback.record(request)

    async def ListFeedback(
        self, request: ingestion_pb2.ListFeedbackRequest, context: Any
    ) -> ingestion_pb2.ListFeedbackResponse:
        return await self._feedback.list(request)

    async def Info(self, request: ingestion_pb2.InfoRequest, context: Any) -> ingestion_pb2.InfoResponse:
        states = await in_time(self._log.partitions(self._settings.log.group), "partitions")
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
            dead_letters=await in_time(self._log.count_dead_letters(), "dead_letters"),
        )


def open_log(settings: IngestionSettings) -> EventLog:
    """The log that the settings name, not started yet."""
    log = settings.log
    if log.kind == "kafka":
        from citewell.ingestion.logs.kafka.log import KafkaLog  # the embedded set-up does without its client

        return KafkaLog(log.kafka, most_waiting_bytes=log.most_waiting_megabytes << 20)
    return LocalLog(
        settings.data / "log.sqlite",
        partitions=log.partitions,
        owner_wait_seconds=log.owner_wait_seconds,
        most_waiting_bytes=log.most_waiting_megabytes << 20,
    )


def open_feedback_log(settings: IngestionSettings) -> EventLog:
    """The log of feedback beside that of publications, not started yet."""
    log = settings.log
    if log.kind == "kafka":
        from citewell.ingestion.logs.kafka.log import KafkaLog

        kafka = log.kafka.model_copy(update={"topic": log.kafka.feedback_topic})
        return KafkaLog(kafka, most_waiting_bytes=log.most_waiting_megabytes << 20)
    return LocalLog(
        settings.data / "feedback.sqlite",
        partitions=1,
        owner_wait_seconds=log.owner_wait_seconds,
        most_waiting_bytes=log.most_waiting_megabytes << 20,
    )
