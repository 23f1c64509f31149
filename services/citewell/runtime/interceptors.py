"""The interceptor of every call: trace, deadline, admission, errors, metrics, one log line."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from opentelemetry.trace import SpanKind

from citewell.runtime import deadlines, telemetry
from citewell.runtime.access import NOBODY, Access
from citewell.runtime.admission import Admission
from citewell.runtime.errors import (
    CitewellError,
    Internal,
    InvalidField,
    NotBuilt,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    shorten,
)
from citewell.runtime.wire import ParsedRequests, parser

DOMAIN = "citewell"
_HEALTH, _REFLECTION = "/grpc.health.v1.Health/", "/grpc.reflection."

_Headers = Sequence[tuple[str, str | bytes]]

_durations = telemetry.meter.create_histogram(
    "grpc.server.call.duration", unit="s", description="Time to answer a call"
)
_client_calls = telemetry.meter.create_counter(
    "citewell_client_calls", description="Calls by client: those that the access policy names, and other"
)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each handler, so that handlers only translate messages and call the domain."""

    def __init__(self, default_deadline_seconds: float, admission: Admission, access: Access) -> None:
        self._default_deadline, self._admission, self._access = default_deadline_seconds, admission, access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if (
            handler is None
            or method.startswith(_HEALTH)
            or (method.startswith(_REFLECTION) and not self._access.restricted)
        ):
            return handler
        headers = tuple(handler_call_details.invocation_metadata or ())
        # Requests come as bytes: those of a caller who may not call are not even parsed.
        parse = parser(handler.request_deserializer)
        if handler.response_streaming:
            stream: Any = handler.stream_stream or handler.unary_stream

            async def answer_stream(data: Any, context: Any) -> AsyncIterator[Any]:
                with _Call(method, headers, context, self._deadline(context, streams=True)) as call:
                    try:
                        # No bytes: each service limits those of a stream by how fast it reads.
                        with self._taken(call, headers, data, parse, 0) as request:
                            del data
                            async for response in stream(request, context):
                                yield response
                    except Exception as error:
                        await call.fail(error)

            wrap = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return wrap(answer_stream, None, handler.response_serializer)

        unary: Any = handler.stream_unary or handler.unary_unary

        async def answer(data: Any, context: Any) -> Any:
            with _Call(method, headers, context, self._deadline(context, streams=handler.request_streaming)) as call:
                try:
                    size = 0 if handler.request_streaming else len(data)
                    with self._taken(call, headers, data, parse, size) as request:
                        del data
                        return await unary(request, context)
                except Exception as error:
                    await call.fail(error)

        wrap_unary = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return wrap_unary(answer, None, handler.response_serializer)

    @contextmanager
    def _taken(
        self,
        call: _Call,
        headers: _Headers,
        data: Any,
        parse: Callable[[bytes], Any],
        size: int,
    ) -> Iterator[Any]:
        """The request, or the stream of requests, while the call holds its places in quota and admission."""
        call.caller = caller = self._access.caller(call.path, call.context, headers)
        if isinstance(data, bytes):
            request = parse(data)
            weight = max(1, len(request.requests)) if "requests" in request.DESCRIPTOR.fields_by_name else 1
        else:
            request, weight = ParsedRequests(self._access.paced(caller, data), parse), 1
        with self._access.quota(caller, weight), self._admission.call(call.path, size, deadlines.remaining()):
            yield request

    def _deadline(self, context: Any, *, streams: bool) -> float:
        left = context.time_remaining()
        if left is not None:
            return float(left)
        return float("inf") if streams else self._default_deadline


class _Call:
    """One call: sets its deadline and span while it runs, writes its metrics and log line when it ends."""

    def __init__(self, path: str, headers: _Headers, context: Any, seconds: float) -> None:
        self.path, self._method, self.context = path, path.lstrip("/"), context
        self.caller = NOBODY
        self._host = _host(context.peer())  # gRPC forgets it when the call is cancelled
        self._within = deadlines.within(seconds)
        parent = telemetry.continued_trace({key: value for key, value in headers if isinstance(value, str)})
        self._span = telemetry.span(self._method, parent, SpanKind.SERVER, **{"rpc.system.name": "grpc"})
        self._code, self._reason = "OK", ""

    def __enter__(self) -> _Call:
        self._started = time.monotonic()
        self._within.__enter__()
        self._current = self._span.__enter__()
        return self

    async def fail(self, error: Exception) -> None:
        """Ends the call with the status that the error stands for. Always raises."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, (Unauthenticated, PermissionDenied)) and "stage" in error.metadata:
            # Not the caller's credentials were refused but this service's, by a service that it needs.
            telemetry.logger.error("refused", method=self._method, stage=error.metadata["stage"], why=error.message)
            error = Unavailable(f"{error.metadata['stage']} refuses this service", reason="SERVICE_REFUSED")
        if isinstance(error, NotImplementedError):  # of the generated class: no handler was written
            error = NotBuilt(f"this release does not have {self._method}")
        if not isinstance(error, CitewellError):
            telemetry.logger.error("defect", method=self._method, exc_info=error)
            error = Internal("an internal error happened; the service's log has it")
        self._code, self._reason = error.code.name, error.reason
        await self.context.abort_with_status(rpc_status.to_status(to_status(error)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None and self._code == "OK":
            self._code = "CANCELLED"
        seconds = time.monotonic() - self._started
        _durations.record(seconds, {"rpc.method": self._method, "rpc.response.status_code": self._code})
        told: dict[str, str] = {}
        if self.caller is not NOBODY:
            told["client"] = shorten(self.caller.identity)
            labels = {"rpc.method": self._method, "rpc.response.status_code": self._code}
            _client_calls.add(1, {"client": self.caller.label, **labels})
        log = telemetry.logger.info if self._code in ("OK", "CANCELLED") else telemetry.logger.warning
        log(
            "call",
            method=self._method,
            code=self._code,
            reason=self._reason,
            ms=round(seconds * 1000, 2),
            caller=self._host,
            **told,
        )
        telemetry.end_rpc_span(self._current, self._code, self._reason, server=True)
        self._span.__exit__(None, None, None)
        self._within.__exit__(None, None, None)


def _host(peer: str) -> str:
    """The caller's host out of gRPC's name of a connection, e.g. ipv4:10.0.0.7:50210."""
    return peer.partition(":")[2].rpartition(":")[0] or peer


def to_status(error: CitewellError) -> status_pb2.Status:
    """google.rpc.Status with exactly one ErrorInfo, and BadRequest or RetryInfo where they apply."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    details = [_packed(info)]
    if isinstance(error, InvalidField):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=int(error.code), message=error.message, details=details)


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
