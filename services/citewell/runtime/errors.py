"""The exceptions of all services. Each class has a gRPC code, a stable reason, and whether a retry can help.

    CitewellError
    ├── InvalidField          INVALID_ARGUMENT     names the field, the value and what would be right
    ├── NotFound              NOT_FOUND
    ├── AlreadyExists         ALREADY_EXISTS
    ├── FailedPrecondition    FAILED_PRECONDITION  the caller must change something first
    ├── Overloaded            RESOURCE_EXHAUSTED   retry after the time given
    │   └── StorageFull       RESOURCE_EXHAUSTED   no disk space; an operator must act
    ├── MessageTooLarge       RESOURCE_EXHAUSTED   gRPC refused a message for its size
    ├── Unauthenticated       UNAUTHENTICATED      who calls is not known
    ├── PermissionDenied      PERMISSION_DENIED    who calls may not do that
    ├── DeadlineExceeded      DEADLINE_EXCEEDED
    ├── Unavailable           UNAVAILABLE          a dependency does not answer; retry
    ├── NotBuilt              UNIMPLEMENTED
    └── Internal              INTERNAL             a defect of the service

Domain code raises these and never imports grpc. runtime/interceptors.py makes google.rpc.Status of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """gRPC status codes by their numbers on the wire."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CitewellError(Exception):
    """What went wrong. The message may be sent to the caller."""

    code: ClassVar[Code] = Code.INTERNAL
    default_reason: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, reason: str | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidField(CitewellError):
    """A field of the request is wrong."""

    code = Code.INVALID_ARGUMENT
    default_reason = "INVALID_FIELD"

    def __init__(self, field: str, value: object, expected: str, *, reason: str | None = None) -> None:
        self.field, self.expected = field, expected
        self.value = shorten(str(value))
        super().__init__(f"{field} is {self.value!r}; expected {expected}", reason=reason)


class NotFound(CitewellError):
    code = Code.NOT_FOUND
    default_reason = "NOT_FOUND"


class AlreadyExists(CitewellError):
    code = Code.ALREADY_EXISTS
    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(CitewellError):
    code = Code.FAILED_PRECONDITION
    default_reason = "FAILED_PRECONDITION"


class Overloaded(CitewellError):
    """The service has too much work already."""

    code = Code.RESOURCE_EXHAUSTED
    default_reason = "OVERLOADED"
    retryable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_seconds = retry_after_seconds


class StorageFull(Overloaded):
    default_reason = "STORAGE_FULL"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_seconds=30.0)


class MessageTooLarge(CitewellError):
    """A message is larger than the sender or the receiver takes. Only another message can help."""

    code = Code.RESOURCE_EXHAUSTED
    default_reason = "MESSAGE_TOO_LARGE"


class Unauthenticated(CitewellError):
    code = Code.UNAUTHENTICATED
    default_reason = "CREDENTIALS_MISSING"


class PermissionDenied(CitewellError):
    code = Code.PERMISSION_DENIED
    default_reason = "SCOPE_MISSING"


class DeadlineExceeded(CitewellError):
    code = Code.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class Unavailable(CitewellError):
    code = Code.UNAVAILABLE
    default_reason = "UNAVAILABLE"
    retryable = True


class NotBuilt(CitewellError):
    code = Code.UNIMPLEMENTED
    default_reason = "NOT_BUILT"


class Internal(CitewellError):
    """A defect of the service. The caller gets no details; the log has them."""


def error_for(
    code: int,
    message: str,
    reason: str,
    metadata: dict[str, str] | None = None,
    retry_after_seconds: float = 1.0,
    field: str = "",
) -> CitewellError:
    """The exception that another service's status stands for."""
    kinds = (
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Unauthenticated,
        PermissionDenied,
        DeadlineExceeded,
        Unavailable,
        NotBuilt,
    )
    for kind in kinds:
        if kind.code == code:
            return kind(message, reason=reason, **(metadata or {}))
    if code == Code.RESOURCE_EXHAUSTED:
        return Overloaded(message, retry_after_seconds=retry_after_seconds, reason=reason)
    if code == Code.INVALID_ARGUMENT:
        return RemoteInvalidField(field, message, reason)
    return Internal(message, reason=reason)


class RemoteInvalidField(InvalidField):
    """A field that another service refused, with that service's message; `field` is empty if the status names none."""

    def __init__(self, field: str, message: str, reason: str) -> None:
        super().__init__(field, "", "", reason=reason or None)
        self.message = message
        self.args = (message,)


def shorten(text: str, limit: int = 80) -> str:
    """The text, cut so that no message contains a whole draft."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
