"""Calls between services: the service config, deadlines and traces passed on, statuses turned into our exceptions."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from opentelemetry.trace import SpanKind

from citewell.runtime import deadlines, telemetry
from citewell.runtime.errors import CitewellError, Code, DeadlineExceeded, MessageTooLarge, Unavailable, error_for
from citewell.runtime.files import Reloaded
from citewell.runtime.health import READY
from citewell.runtime.rotating import RotatingChannel
from citewell.runtime.settings import TlsClient, UnknownSetting, on_this_machine, read_secret
from citewell.runtime.tls import client_credentials, client_files

# Idempotent methods: they are retried on UNAVAILABLE, which means that the call was not answered.
IDEMPOTENT = {
    "citewell.recommender.v1.RecommenderService": (
        "Recommend",
        "RecommendBatch",
        "RecommendManuscript",
        "Explain",
        "Info",
    ),
    "citewell.profiler.v1.ProfileQueryService": (
        "EmbedQuery",
        "ScoreProfiles",
        "GetProfile",
        "ListReferences",
        "Info",
    ),
    "citewell.profiler.v1.LedgerService": (
        "ApplyPublications",
        "GetEventState",
        "RecordDeadEvents",
        "GetRebuild",
        "ListViews",
    ),
    "citewell.index.v1.IndexService": (
        "Search",
        "SearchEvidence",
        "SearchSpans",
        "Upsert",
        "GetPapers",
        "ListPapers",
        "ReadPoints",
        "Stats",
        "Info",
    ),
    "citewell.reranker.v1.RerankerService": ("Rerank", "Info"),
    # Publish: an event that is appended twice changes nothing the second time.
    "citewell.ingestion.v1.IngestionService": (
        "Publish",
        "GetPublicationStatus",
        "ListDeadLetters",
        "ListFeedback",
        "Info",
    ),
}

SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [
                {"service": service, "method": method} for service, methods in IDEMPOTENT.items() for method in methods
            ],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # Calls go only to servers that are ready, so that those which start or stop get none. Needs the service
    # grpc.health.v1.Health at the address.
    "healthCheckConfig": {"serviceName": READY},
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
"""What every client of citewell should use; `citewell service-config` prints it for clients in other languages."""

# gRPC's words when no connection could be made, for its one structured part: the address.
_NO_CONNECTION = re.compile(
    r"last error: \w+: (?:ipv4:)?(?P<address>\S+): (?:Failed to connect to remote host: )?(?P<why>.+)$"
)

Response = TypeVar("Response")


class _Method(Protocol):
    """A method of an aio stub with one answer; its request may be a stream."""

    def __call__(
        self, request: Any, /, *, timeout: float | None = None, metadata: Any = None, wait_for_ready: bool | None = None
    ) -> Awaitable[Any]: ...


class _StreamMethod(Protocol):
    """A method of an aio stub that answers with a stream."""

    def __call__(self, request: Any, /, *, timeout: float | None = None, metadata: Any = None) -> Any: ...


def open_channel(
    address: str, tls: TlsClient | None = None, max_message_megabytes: int = 32, token: Path | None = None
) -> grpc.aio.Channel:
    """A channel to a service; connects when first used and again after a loss.

    `token` names a file; its text is sent with every call. Replaced certificates and tokens are used from the next
    call on.
    """
    options: list[tuple[str, str | int]] = [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        ("grpc.enable_retries", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name this limits how long a connection attempt may take, TLS and HTTP/2 greeting included.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_receive_message_length", max_message_megabytes << 20),
        ("grpc.max_send_message_length", max_message_megabytes << 20),
    ]
    encrypted = tls is not None and tls.enabled
    if token and not encrypted and not _on_this_machine(address):
        raise UnknownSetting(f"a token for {address} would travel in plain text; turn on TLS")
    told = Reloaded("token", lambda: (token,), lambda: read_secret("token", token)) if token else None
    if tls is None or not encrypted:
        plain = grpc.aio.insecure_channel(address, options=options)
        return RotatingChannel(lambda: plain, None, told) if told else plain
    if tls.authority:
        # The first decides which name the certificate must have, the second what the server is told it is called.
        options += [("grpc.ssl_target_name_override", tls.authority), ("grpc.default_authority", tls.authority)]
    credentials = Reloaded("client_tls", lambda: client_files(tls), lambda: client_credentials(tls))
    return RotatingChannel(
        lambda: grpc.aio.secure_channel(address, credentials.value(), options=options), credentials, told
    )


def _on_this_machine(address: str) -> bool:
    host = address.removeprefix("dns:///").rpartition(":")[0].strip("[]")
    return address.startswith("unix:") or on_this_machine(host)


async def invoke(
    method: _Method, request: Any, stage: str, *, at_most: float = math.inf, wait_for_ready: bool = False
) -> Any:
    """The answer of another service within what is left of the caller's deadline, or one of our exceptions.

    `stage` names the work in errors. With `wait_for_ready` a call without a connection waits for one until its
    deadline; otherwise it fails with Unavailable as soon as connecting fails.
    """
    seconds = min(deadlines.budget(stage), at_most)
    timeout = None if math.isinf(seconds) else seconds
    with _client_span(method, stage):
        headers = tuple(telemetry.trace_headers().items())
        try:
            return await method(request, timeout=timeout, metadata=headers, wait_for_ready=wait_for_ready)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, stage) from None
        except asyncio.InvalidStateError as error:  # the channel was closed under the call
            raise Unavailable(f"{stage}: the channel is closed", stage=stage) from error


async def answers(method: _StreamMethod, request: Any, stage: str) -> AsyncGenerator[Any, None]:
    """Each answer of a server-streaming call within what is left of the caller's deadline. Errors are our exceptions.

    Closing the generator cancels the call.
    """
    seconds = deadlines.budget(stage)
    timeout = None if math.isinf(seconds) else seconds
    # The span is not made the current one: a generator may be closed in another context than it was begun in.
    name, attributes = _span_of(method, stage)
    span = telemetry.tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
    call = method(request, timeout=timeout, metadata=tuple(telemetry.trace_headers(span).items()))
    code, reason = "CANCELLED", ""
    try:
        async for answer in call:
            yield answer
        code = "OK"
    except grpc.aio.AioRpcError as error:
        known = from_rpc_error(error, stage)
        code, reason = known.code.name, known.reason
        raise known from None
    finally:
        call.cancel()
        telemetry.end_rpc_span(span, code, reason, server=False)
        span.end()


@contextmanager
def _client_span(method: _Method, stage: str) -> Iterator[None]:
    """A client span that records how the call ended.

    OpenTelemetry's own interceptors would record the gRPC status, but not the reason.
    """
    name, attributes = _span_of(method, stage)
    with telemetry.span(name, None, SpanKind.CLIENT, **attributes) as span:
        try:
            yield
        except CitewellError as error:
            telemetry.end_rpc_span(span, error.code.name, error.reason, server=False)
            raise
        telemetry.end_rpc_span(span, "OK", "", server=False)


def _span_of(method: _Method | _StreamMethod, stage: str) -> tuple[str, dict[str, str | int | float]]:
    """Name and attributes of a call's span."""
    path = getattr(method, "_method", b"")  # gRPC has no public attribute for the name
    name = path.decode().lstrip("/") if isinstance(path, bytes) and path else stage
    return name, {"rpc.system.name": "grpc", "citewell.stage": stage}


async def require_serving(channel: grpc.aio.Channel, service: str, name: str = "") -> None:
    """Raises Unavailable unless the service is SERVING. Empty: the whole server, which errors then call `name`."""
    check, name = health_pb2_grpc.HealthStub(channel).Check, name or service
    answer = await invoke(check, health_pb2.HealthCheckRequest(service=service), name, at_most=2.0)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{name} is not serving", stage=name)


def from_rpc_error(error: grpc.aio.AioRpcError, stage: str) -> CitewellError:
    """The exception that the status of a failed call stands for."""
    reason, metadata, violation, retry_after_seconds = "", {}, None, 1.0
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # details and code contradict each other: not one of our servers
        status = None
    for detail in status.details if status else ():
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(request) and request.field_violations:
            violation = request.field_violations[0]
        elif detail.Unpack(retry):
            retry_after_seconds = retry.retry_delay.ToMilliseconds() / 1000
    message = error.details() or "no details"
    if error.code() is grpc.StatusCode.CANCELLED and not reason:
        # Not cancelled by us, which raises CancelledError: the server stopped before it looked at the call.
        return Unavailable(f"{stage}: the server stopped", stage=stage)
    code = int(error.code().value[0])
    if violation is not None:
        return error_for(code, message, reason, field=violation.field)
    if not reason:  # gRPC ended the call itself: no connection, the deadline, or the size of a message
        if code == Code.RESOURCE_EXHAUSTED and "message larger than max" in message:
            return MessageTooLarge(f"{stage}: {message}", stage=stage)
        lost = _NO_CONNECTION.search(message)
        if lost:
            metadata["unreachable"] = lost["address"]
            message = f"cannot connect to {lost['address']}: {lost['why']}"
        message = f"{stage}: {message}"
        reason = {4: DeadlineExceeded.default_reason, 14: Unavailable.default_reason}.get(code, error.code().name)
    metadata.setdefault("stage", stage)
    return error_for(code, message, reason, metadata, retry_after_seconds)
