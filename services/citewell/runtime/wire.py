"""Requests that cannot be parsed: finds the wrong field, so that the answer names it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from citewell.runtime.errors import InvalidField

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parser(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """The same deserializer, raising InvalidField where gRPC would answer INTERNAL without an explanation."""
    assert deserialize is not None  # generated handlers have one
    descriptor: Descriptor = deserialize.__self__.DESCRIPTOR  # type: ignore[attr-defined]  # of Message.FromString

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise _fault(descriptor, data) from None

    return parse


class ParsedRequests:
    """The requests of a stream. A malformed one raises its error, and a handler may go on with the next."""

    def __init__(self, requests: AsyncIterable[bytes], parse: Callable[[bytes], Any]) -> None:
        self._requests, self._parse = aiter(requests), parse

    def __aiter__(self) -> ParsedRequests:
        return self

    async def __anext__(self) -> Any:
        return self._parse(await anext(self._requests))


def _fault(descriptor: Descriptor, data: bytes) -> InvalidField:
    try:
        broken = find_broken_text(descriptor, data)
    except (IndexError, ValueError):
        broken = None
    if broken is not None:
        field, text = broken
        return InvalidField(field, text.decode(errors="backslashreplace"), "text in UTF-8", reason="BROKEN_UTF8")
    return InvalidField(
        "request", f"{len(data)} bytes", f"a {descriptor.full_name} message", reason="MALFORMED_MESSAGE"
    )


def find_broken_text(descriptor: Descriptor, data: bytes, path: str = "") -> tuple[str, bytes] | None:
    """Path and bytes of the first string field that is no UTF-8; None if all are sound."""
    at, seen = 0, dict[int, int]()
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("truncated")
            value, at = data[at : at + length], at + length
            field = descriptor.fields_by_number.get(number)
            if field is None:
                continue
            place = f"[{seen.get(number, 0)}]" if field.is_repeated else ""
            seen[number] = seen.get(number, 0) + 1
            name = f"{path}{field.name}{place}"
            if field.message_type is not None:
                inner = find_broken_text(field.message_type, value, f"{name}.")
                if inner is not None:
                    return inner
            elif field.type == FieldDescriptor.TYPE_STRING and not _is_text(value):
                return name, value
        else:
            raise ValueError(f"wire type {kind}")
    return None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no varint")
