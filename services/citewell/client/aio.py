"""The client for asyncio."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from citewell.client.connection import Tls, connect
from citewell.client.messages import (
    dead_letter_from_message,
    explanation_from_message,
    log_from_message,
    receipt_from_message,
    recommendation_from_message,
    replayed_from_message,
    status_from_message,
)
from citewell.client.options import DEFAULTS, Options, options_to_message, query_to_message
from citewell.client.ordering import in_order, streamed
from citewell.client.results import (
    DeadLetter,
    Explanation,
    FeedbackPolicy,
    LogInfo,
    PublicationStatus,
    Receipt,
    Recommendation,
    Replayed,
)
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.recommender.v1 import recommender_pb2
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke
from citewell.runtime.errors import CitewellError, Code, DeadlineExceeded, InvalidField, Overloaded, error_for
from citewell.scholarly.limits import MAX_EVENT_BYTES
from citewell.scholarly.publications import Event, Publication, Retraction
from citewell.scholarly.queries import Query
from citewell.types.messages import event_to_message

T = TypeVar("T")

Publishable = Publication | Retraction | ingestion_pb2.PublishRequest
"""What can be published. A PublishRequest is sent unchanged, including fields that this client does not know."""

PAGE = 100
REPLAYED_AT_ONCE = 1_000
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# The most calls in flight, and the most receipts held until earlier calls end. Receipts are small, calls are not.
WAITING_CALLS = 32
WAITING_RECEIPTS = 10_000


class AsyncCitewell:
    """Connections to the recommender (for answers) and to ingestion (for publications); either may be left out.

    `timeout` is the deadline in seconds of each call that has no timeout of its own. `token` names a file with a bearer
    token; it is sent over TLS or on this machine only, and read again when it is replaced.
    """

    def __init__(
        self,
        recommender: str = "",
        *,
        ingestion: str = "",
        tls: Tls | None = None,
        token: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._addresses = {"recommender": recommender, "ingestion": ingestion}
        self._tls, self._token, self._timeout = tls, token, timeout
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends calls in flight and closes the connections."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()

    async def recommend(
        self, query: Query, options: Options = DEFAULTS, *, timeout: float | None = None
    ) -> Recommendation:
        """The best papers for a place in a draft."""
        request = recommender_pb2.RecommendRequest(query=query_to_message(query), options=options_to_message(options))
        answer = await self._call(self._recommender().Recommend, request, "recommend", timeout)
        return recommendation_from_message(answer)

    async def recommend_batch(
        self, queries: Sequence[Query], options: Options = DEFAULTS, *, timeout: float | None = None
    ) -> list[Recommendation | CitewellError]:
        """An answer or an error for each of up to 100 queries, in order."""
        asked = options_to_message(options)
        request = recommender_pb2.RecommendBatchRequest(
            requests=[
                recommender_pb2.RecommendRequest(query=query_to_message(query), options=asked) for query in queries
            ]
        )
        answer = await self._call(self._recommender().RecommendBatch, request, "recommend", timeout)
        return [
            _error_from_message(result.error)
            if result.HasField("error")
            else recommendation_from_message(result.response)
            for result in answer.results
        ]

    async def feedback_policy(self, *, timeout: float | None = None) -> FeedbackPolicy:
        """What the recommender keeps of feedback."""
        info = await self._call(self._recommender().Info, recommender_pb2.InfoRequest(), "info", timeout)
        name = recommender_pb2.FeedbackPolicy.Name(info.feedback).removeprefix("FEEDBACK_POLICY_")
        return {policy.value: policy for policy in FeedbackPolicy}.get(name, FeedbackPolicy.OFF)

    async def record_feedback(
        self,
        answer: Recommendation,
        *,
        chosen: Sequence[str] = (),
        dismissed: Sequence[str] = (),
        shown: Sequence[str] | None = None,
        query: Query | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> str:
        """Tells what a writer chose among an answer's papers; returns the event's id.

        `shown`: ids in their order; default: those of the answer. `query`: pass it only if the writer agrees that the
        text is kept.
        """
        request = recommender_pb2.RecordFeedbackRequest(
            snapshot=answer.message.snapshot,
            shown=[item.paper.id for item in answer.items] if shown is None else shown,
            chosen=chosen,
            dismissed=dismissed,
            query=query_to_message(query) if query else None,
            keep_text=query is not None,
            request_id=request_id or str(uuid.uuid4()),
        )
        recorded = await self._call(self._recommender().RecordFeedback, request, "feedback", timeout)
        return str(recorded.event_id)

    async def explain(
        self, query: Query, paper_id: str, options: Options = DEFAULTS, *, timeout: float | None = None
    ) -> Explanation:
        """Explains a paper's rank for a query; NotFound for a paper that cannot be an answer."""
        request = recommender_pb2.ExplainRequest(
            query=query_to_message(query), paper_id=paper_id, options=options_to_message(options)
        )
        return explanation_from_message(await self._call(self._recommender().Explain, request, "explain", timeout))

    async def publish(self, body: Publishable, *, request_id: str = "", timeout: float | None = None) -> Receipt:
        """The receipt of an event that is durable in the log.

        Retried within the deadline while ingestion does not answer or is overloaded. A request id makes retries safe.
        """
        request = _publish_request(body, request_id)
        method: Any = self._ingestion().Publish
        with deadlines.within(self._timeout if timeout is None else timeout):
            return receipt_from_message(await _patiently(lambda: invoke(method, request, "publish")))

    async def publish_all(
        self,
        bodies: Iterable[Publishable] | AsyncIterable[Publishable],
        *,
        in_flight: int = 128,
        timeout: float | None = None,
    ) -> AsyncIterator[Receipt | CitewellError]:
        """Yields for each event, in order, its receipt, or the error that says what is wrong with it.

        Events are read only as calls finish, so that a source of any size needs little memory. `timeout` is per event.
        Any other error (no answer within the timeout, a defect) ends the iteration.
        """

        async def one(body: Publishable) -> Receipt | CitewellError:
            try:
                return await self.publish(body, timeout=timeout)
            except CitewellError as error:
                if error.code is not Code.INVALID_ARGUMENT:
                    raise
                return error

        async for result in in_order(streamed(bodies), one, in_flight):
            yield result

    async def status(self, token: str, *, wait: bool = False, timeout: float | None = None) -> PublicationStatus:
        """The state of a publication. With `wait`, returns when it is searchable or a dead letter."""
        request = ingestion_pb2.GetPublicationStatusRequest(token=token, wait=wait)
        return status_from_message(await self._call(self._ingestion().GetPublicationStatus, request, "status", timeout))

    async def settle(
        self, receipts: AsyncIterable[Receipt], *, timeout: float | None = None
    ) -> AsyncIterator[tuple[Receipt, PublicationStatus]]:
        """Yields each receipt with its final state, in order, once searchable or dead; `timeout` is per receipt."""

        async def one(receipt: Receipt) -> tuple[Receipt, PublicationStatus]:
            return receipt, await self.status(receipt.token, wait=True, timeout=timeout)

        async for settled in in_order(receipts, one, WAITING_CALLS, WAITING_RECEIPTS):
            yield settled

    async def dead_letters(self, *, timeout: float | None = None) -> AsyncIterator[DeadLetter]:
        """Every dead letter, page by page, in the order of the log; `timeout` is per page."""
        request = ingestion_pb2.ListDeadLettersRequest(page_size=PAGE)
        while True:
            page = await self._call(self._ingestion().ListDeadLetters, request, "dead letters", timeout)
            for letter in page.dead_letters:
                yield dead_letter_from_message(letter)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def redrive(self, ids: Sequence[str], *, request_id: str = "", timeout: float | None = None) -> list[Receipt]:
        """Publishes the events of dead letters again; returns their receipts in the same order."""
        request = ingestion_pb2.RedriveDeadLettersRequest(ids=ids, request_id=request_id or str(uuid.uuid4()))
        answer = await self._call(self._ingestion().RedriveDeadLetters, request, "redrive", timeout)
        return list(map(receipt_from_message, answer.published))

    async def replay(
        self, partition: int, first: int, end: int, *, timeout: float | None = None
    ) -> AsyncIterator[Replayed]:
        """Delivers the events with first ≤ offset < end again, page by page. Applied events change nothing."""
        offsets = ingestion_pb2.OffsetRange(partition=partition, first=first, end=end)
        async for page in self._replay(ingestion_pb2.ReplayRequest(offsets=offsets), timeout):
            yield page

    async def replay_times(
        self, first: datetime, end: datetime, *, timeout: float | None = None
    ) -> AsyncIterator[Replayed]:
        """Delivers the events appended at first ≤ time < end again, of every partition; times must have a time zone."""
        request = ingestion_pb2.ReplayRequest()
        request.times.first.FromDatetime(first)
        request.times.end.FromDatetime(end)
        async for page in self._replay(request, timeout):
            yield page

    async def _replay(self, request: ingestion_pb2.ReplayRequest, timeout: float | None) -> AsyncIterator[Replayed]:
        request.page_size = REPLAYED_AT_ONCE
        while True:
            page = await self._call(self._ingestion().Replay, request, "replay", timeout)
            yield replayed_from_message(page)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def log(self, *, timeout: float | None = None) -> LogInfo:
        """The event log: its partitions, and the position up to which each is applied."""
        return log_from_message(await self._call(self._ingestion().Info, ingestion_pb2.InfoRequest(), "info", timeout))

    def _recommender(self) -> RecommenderServiceStub:
        return RecommenderServiceStub(self._channel("recommender"))

    def _ingestion(self) -> IngestionServiceStub:
        return IngestionServiceStub(self._channel("ingestion"))

    def _channel(self, service: str) -> grpc.aio.Channel:
        if not (address := self._addresses[service]):
            raise ValueError(f"this client was given no address of the {service} service")
        if service not in self._channels:
            self._channels[service] = connect(address, self._tls, self._token)
        return self._channels[service]

    async def _call(self, method: Any, request: Any, stage: str, timeout: float | None) -> Any:
        with deadlines.within(self._timeout if timeout is None else timeout):
            return await invoke(method, request, stage)


def _error_from_message(error: recommender_pb2.RecommendError) -> CitewellError:
    seconds = error.retry_delay.ToMilliseconds() / 1000 if error.HasField("retry_delay") else 1.0
    return error_for(error.code, error.message, error.reason, retry_after_seconds=seconds, field=error.field)


def _publish_request(body: Publishable, request_id: str) -> ingestion_pb2.PublishRequest:
    """The request, or InvalidField for a body that no message can hold."""
    if isinstance(body, ingestion_pb2.PublishRequest):
        request = ingestion_pb2.PublishRequest()
        request.CopyFrom(body)
    else:
        try:
            event = event_to_message(Event("", body))
        except UnicodeEncodeError as error:
            text = error.object.encode(errors="backslashreplace").decode()
            kind = type(body).__name__.lower()
            raise InvalidField(
                _path_to(error.object, body, kind) or kind, text, "text without surrogates", reason="BROKEN_UTF8"
            ) from None
        request = ingestion_pb2.PublishRequest()
        if isinstance(body, Publication):
            request.publication.CopyFrom(event.publication)
        else:
            request.retraction.CopyFrom(event.retraction)
    if (size := request.ByteSize()) > MAX_EVENT_BYTES:
        kind = request.WhichOneof("body") or "body"
        raise InvalidField(kind, f"{size} bytes", f"at most {MAX_EVENT_BYTES} bytes", reason="EVENT_TOO_LARGE")
    request.request_id = request_id or request.request_id or str(uuid.uuid4())
    return request


def _path_to(text: str, inside: object, path: str) -> str:
    """The path of the field that holds the text; empty if it is not inside."""
    if inside == text:
        return path
    if is_dataclass(inside):
        parts = [(f"{path}.{each.name}", getattr(inside, each.name)) for each in fields(inside)]
    elif isinstance(inside, tuple):
        parts = [(f"{path}[{number}]", each) for number, each in enumerate(inside)]
    else:
        return ""
    return next(filter(None, (_path_to(text, part, place) for place, part in parts)), "")


async def _patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retries after retryable errors, with growing pauses, until the deadline; then raises the last of them."""
    pause = FIRST_PAUSE_SECONDS
    failure: CitewellError | None = None
    while True:
        try:
            return await attempt()
        except CitewellError as error:
            if failure and isinstance(error, DeadlineExceeded):
                raise failure from None  # why earlier attempts failed tells more than that the time ended
            failure = error
            told = error.retry_after_seconds if isinstance(error, Overloaded) else 0.0
            seconds = max(told, pause) * random.uniform(0.75, 1.25)
            if not error.retryable or seconds >= deadlines.remaining():
                raise
            await asyncio.sleep(seconds)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
