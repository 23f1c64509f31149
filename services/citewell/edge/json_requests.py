"""Requests in JSON. A wrong one raises an error with a reason, and with the field or the place that is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from citewell.runtime.errors import InvalidField

_BASE64 = re.compile(r"[\w+/\s-]*(?:=\s*){0,2}", re.ASCII)
"""Both alphabets, also with line breaks or without padding. json_format reads them all, and skips other characters."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 50
_AROUND = 30
_EXPECTED = {
    FieldDescriptor.CPPTYPE_INT32: "an integer of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "an integer of 64 bits",
    FieldDescriptor.CPPTYPE_UINT32: "an integer of 32 bits, 0 or more",
    FieldDescriptor.CPPTYPE_UINT64: "an integer of 64 bits, 0 or more",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "a string",
}

_IsWrong = Callable[[FieldDescriptor, Any], bool]


def parsed(data: bytes, kind: type[Message]) -> Message:
    """The message. An unknown field is an error, because in JSON it is most likely a typo."""
    descriptor = cast(Descriptor, kind.DESCRIPTOR)
    told = _loaded(data or b"{}", descriptor)
    # json_format misreads an empty list as an empty message, and plain text as base64.
    _require(told, descriptor, "", lambda field, value: field.type == field.TYPE_BYTES and not _is_base64(value))
    message = kind()
    try:
        json_format.ParseDict(told, message, max_recursion_depth=_DEEPEST)
    except json_format.ParseError as error:
        _require(told, descriptor, "", _is_refused)
        raise _malformed(str(error), descriptor) from None
    return message


def _loaded(data: bytes, message: Descriptor) -> Any:
    try:
        text = data.decode()
        return json.loads(text, object_pairs_hook=_without_repetition)
    except UnicodeDecodeError as error:
        told = f"{data[error.start]:#04x} at byte {error.start}"
        raise InvalidField("request", told, "JSON in UTF-8", reason="BROKEN_UTF8") from None
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - _AROUND) : error.pos + _AROUND]
        what = f"JSON; line {error.lineno}, column {error.colno}: {error.msg}"
        raise InvalidField("request", around, what, reason="MALFORMED_MESSAGE") from None
    except (RecursionError, ValueError) as error:  # too deep, or an integer of thousands of digits
        raise _malformed(str(error), message) from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) < len(pairs):
        [(repeated, times)] = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidField(repeated, f"there {times} times", "each field once")
    return told


def _require(told: Any, message: Descriptor, path: str, is_wrong: _IsWrong) -> None:
    """Raises InvalidField for the first unknown field, the first object that is none, and the first wrong value."""
    if not isinstance(told, dict):
        raise InvalidField(path or "request", _quoted(told), "a JSON object")
    fields = {**message.fields_by_name, **{field.json_name: field for field in message.fields}}
    for name, value in told.items():
        field = fields.get(name)
        at = f"{path}{'.' if path else ''}{field.name if field else name}"
        if field is None:
            known = ", ".join(field.json_name for field in message.fields)
            raise InvalidField(at, _quoted(value), f"no such field, but one of {known}")
        if value is None:
            continue
        if not field.is_repeated:
            _require_value(value, field, at, is_wrong)
            continue
        if not isinstance(value, list):
            raise InvalidField(at, _quoted(value), "a list")
        for number, each in enumerate(value):
            _require_value(each, field, f"{at}[{number}]", is_wrong)


def _require_value(value: Any, field: FieldDescriptor, at: str, is_wrong: _IsWrong) -> None:
    inner = field.message_type
    if inner is not None and not inner.full_name.startswith("google."):
        _require(value, inner, at, is_wrong)
    elif isinstance(value, str) and _SURROGATE.search(value):
        raise InvalidField(at, _quoted(value), "text without lone surrogates", reason="BROKEN_UTF8")
    elif is_wrong(field, value):
        raise InvalidField(at, _quoted(value), _expected(field))


def _is_refused(field: FieldDescriptor, value: Any) -> bool:
    """Whether json_format cannot read a value of the field."""
    owner = field.containing_type
    assert owner is not None  # it is no extension
    try:
        told = {field.name: [value] if field.is_repeated else value}
        json_format.ParseDict(told, GetMessageClass(owner)())
    except json_format.ParseError:
        return True
    return False


def _is_base64(value: Any) -> bool:
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None


def _expected(field: FieldDescriptor) -> str:
    if field.type == field.TYPE_BYTES:
        return "base64"
    if field.enum_type is not None:
        return f"one of {', '.join(value.name for value in field.enum_type.values)}"
    return _EXPECTED.get(field.cpp_type, "what the contract says")


def _malformed(told: str, message: Descriptor) -> InvalidField:
    return InvalidField("request", told, f"a {message.full_name} as JSON", reason="MALFORMED_MESSAGE")


def _quoted(value: Any) -> str:
    return json.dumps(value)
