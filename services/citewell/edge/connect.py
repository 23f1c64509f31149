"""The recommender's RPCs as Connect, gRPC-Web and JSON over HTTP, derived from the contract's descriptor."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import grpc
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status
from protobuf.wkt import Any as AnyDetail

from citewell.runtime import telemetry

_CODES = {code.name: code for code in Code}
_BASE64 = re.compile(r"[\w+/\s-]*(?:=\s*){0,2}", re.ASCII)
"""Both alphabets, also with line breaks or without padding. json_format reads them all, and skips other characters."""
_LONGEST_QUOTE = 60
_PASSED_ON = ("authorization", "traceparent", "tracestate")


class _Binary:
    """Codec for binary protobuf messages."""

    def name(self) -> str:
        return "proto"

    def encode(self, message: Message) -> bytes:
        return message.SerializeToString()

    def decode(self, data: bytes | bytearray, message_class: type[Message]) -> Message:
        message = message_class()
        try:
            message.ParseFromString(bytes(data))
        except DecodeError as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the request is no {message.DESCRIPTOR.name}: {error}") from None
        return message


class _Json:
    """Codec for JSON. An unknown field is an error that names it, because in JSON it is most likely a typo."""

    def name(self) -> str:
        return "json"

    def encode(self, message: Message) -> bytes:
        return json.dumps(json_format.MessageToDict(message), ensure_ascii=False).encode()

    def decode(self, data: bytes | bytearray, message_class: type[Message]) -> Message:
        try:
            message = json_format.Parse(bytes(data) or b"{}", message_class(), max_recursion_depth=50)
            _require_shape(json.loads(data or b"{}"), cast(Descriptor, message_class.DESCRIPTOR), "")
            return message
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            name = message_class.DESCRIPTOR.name
            raise ConnectError(Code.INVALID_ARGUMENT, f"the request is no {name} in JSON: {error}") from None


def _require_shape(told: Any, message: Descriptor, path: str) -> None:
    """Refuses what json_format misreads: an empty list as an empty message, and plain text as base64."""
    if not isinstance(told, dict):
        raise json_format.ParseError(f"{path or 'it'} must be a JSON object, not {_quoted(told)}")
    for field in message.fields:
        value = told.get(field.json_name, told.get(field.name))
        for number, each in enumerate(value if field.is_repeated and isinstance(value, list) else [value]):
            at = f"{path}{'.' if path else ''}{field.json_name}{f'[{number}]' if field.is_repeated else ''}"
            if each is None:
                continue
            if field.type == field.TYPE_BYTES and isinstance(each, str) and not _BASE64.fullmatch(each):
                raise json_format.ParseError(f"{at} must be base64, not {_quoted(each)}")
            inner = field.message_type
            if inner is not None and inner.file.package == message.file.package and not inner.GetOptions().map_entry:
                _require_shape(each, inner, at)


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


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
    details = [AnyDetail(type_url=each.type_url, value=each.value) for each in status.details] if status else []
    code = "CANCELED" if error.code().name == "CANCELLED" else error.code().name
    return ConnectError(_CODES.get(code, Code.UNKNOWN), error.details() or "", details=details)
