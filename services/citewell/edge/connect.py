"""The recommender's RPCs as Connect, gRPC-Web and JSON over HTTP, derived from the contract's descriptor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_status import rpc_status
from protobuf.wkt import Any as AnyDetail

from citewell.edge import json_requests
from citewell.runtime import telemetry
from citewell.runtime.errors import InvalidField
from citewell.runtime.interceptors import to_status
from citewell.runtime.wire import parser

_CODES = {code.name: code for code in Code}
_PASSED_ON = ("authorization", "traceparent", "tracestate")


class _Binary:
    """Codec for binary protobuf messages."""

    def name(self) -> str:
        return "proto"

    def encode(self, message: Message) -> bytes:
        return message.SerializeToString()

    def decode(self, data: bytes | bytearray, message_class: type[Message]) -> Message:
        return _decoded(parser(message_class.FromString), data)


class _Json:
    """Codec for JSON."""

    def name(self) -> str:
        return "json"

    def encode(self, message: Message) -> bytes:
        return json.dumps(json_format.MessageToDict(message), ensure_ascii=False).encode()

    def decode(self, data: bytes | bytearray, message_class: type[Message]) -> Message:
        return _decoded(partial(json_requests.parsed, kind=message_class), data)


def _decoded(parse: Callable[[bytes], Message], data: bytes | bytearray) -> Message:
    try:
        return parse(bytes(data))
    except InvalidField as error:
        raise ConnectError(Code.INVALID_ARGUMENT, error.message, _details(to_status(error))) from None


class ConnectService(ConnectASGIApplication[None]):
    """Forwards all RPCs of a service that have a single request message over a channel."""

    def __init__(
        self,
        service: ServiceDescriptor,
        channel: grpc.aio.Channel,
        max_bytes: int,
        default_seconds: float,
        longest_seconds: float,
    ) -> None:
        self._descriptor = service
        self._channel = channel
        self._default_seconds, self._longest_seconds = default_seconds, longest_seconds
        super().__init__(
            service=None,
            endpoints=lambda _: self._endpoints_of(service),
            read_max_bytes=max_bytes,
            codecs=[_Binary(), _Json()],
        )

    @property
    def path(self) -> str:
        return f"/{self._descriptor.full_name}"

    def _endpoints_of(self, service: ServiceDescriptor) -> Mapping[str, Any]:
        return {f"{self.path}/{method.name}": self._endpoint(method) for method in service.methods}

    def _endpoint(self, method: MethodDescriptor) -> Any:
        info: MethodInfo[Any, Any] = MethodInfo(
            name=method.name,
            service_name=self._descriptor.full_name,
            input=GetMessageClass(method.input_type),
            output=GetMessageClass(method.output_type),
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=StreamType.SERVER_STREAM if method.server_streaming else StreamType.UNARY,
        )
        open_call = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call = open_call(
            f"{self.path}/{method.name}",
            request_serializer=info.input.SerializeToString,
            response_deserializer=info.output.FromString,
        )
        if method.server_streaming:
            return Endpoint.server_stream(info, self._streaming(call))
        return Endpoint.unary(info, self._unary(call))

    def _unary(self, call: Any) -> Callable[[Any, RequestContext[Any, Any]], Any]:
        async def answer(request: Any, context: RequestContext[Any, Any]) -> Any:
            try:
                return await call(request, timeout=self._seconds(context), metadata=_metadata(context))
            except grpc.aio.AioRpcError as error:
                raise _translated(error) from None

        return answer

    def _streaming(self, call: Any) -> Callable[[Any, RequestContext[Any, Any]], AsyncIterator[Any]]:
        async def answers(request: Any, context: RequestContext[Any, Any]) -> AsyncIterator[Any]:
            running = call(request, timeout=self._seconds(context), metadata=_metadata(context))
            try:
                async for answer in running:
                    yield answer
            except grpc.aio.AioRpcError as error:
                raise _translated(error) from None
            finally:
                running.cancel()  # also when the browser disconnected

        return answers

    def _seconds(self, context: RequestContext[Any, Any]) -> float:
        told = context.timeout_ms
        return min(self._default_seconds if told is None else max(told, 0) / 1000, self._longest_seconds)


def _metadata(context: RequestContext[Any, Any]) -> tuple[tuple[str, str], ...]:
    told = {name: value for name in _PASSED_ON if (value := context.request_headers.get(name))}
    return tuple({**telemetry.trace_headers(), **told}.items())


def _translated(error: grpc.aio.AioRpcError) -> ConnectError:
    """The same error, with its details (reason, field, when to retry)."""
    status: Any = rpc_status.from_call(error)
    code = "CANCELED" if error.code().name == "CANCELLED" else error.code().name
    return ConnectError(_CODES.get(code, Code.UNKNOWN), error.details() or "", _details(status) if status else [])


def _details(status: status_pb2.Status) -> list[AnyDetail]:
    return [AnyDetail(type_url=each.type_url, value=each.value) for each in status.details]
