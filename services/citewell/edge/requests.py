"""Requests are received whole before they count as in progress: a slow sender holds memory, but no place."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from citewell.runtime.errors import CitewellError, Code, InvalidField, MessageTooLarge, Unavailable
from citewell.runtime.interceptors import to_status

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_Headers = list[tuple[bytes, bytes]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_STATUSES = {Code.INVALID_ARGUMENT: 400, Code.RESOURCE_EXHAUSTED: 429, Code.UNAVAILABLE: 503}
# gRPC refuses them in metadata, in a way that would look like a defect.
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")


class WholeRequests:
    """Hands requests on when they are complete, at most so many at a time."""

    def __init__(self, inner: Application, most_in_flight: int, most_bytes: int, most_waiting_bytes: int) -> None:
        self._inner = inner
        self._most_in_flight, self._most_bytes, self._most_waiting = most_in_flight, most_bytes, most_waiting_bytes
        self._in_flight = self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = bytearray(), True

        async def refuse(error: CitewellError) -> None:
            self._waiting -= len(body)
            body.clear()
            unread = 4 * self._most_bytes if more else 0
            kind = dict(scope["headers"]).get(b"content-type", b"")
            answer = _as_grpc_web(error) if kind.startswith(b"application/grpc-web") else _as_connect(error)
            await _refuse(receive, send, unread, *answer)

        if any(_UNPRINTABLE.search(value) for _, value in scope["headers"]):
            await refuse(InvalidField("headers", "with other characters", "printable ASCII only"))
            return
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                part, more = message.get("body", b""), message.get("more_body", False)
                body += part
                self._waiting += len(part)
                if len(body) > self._most_bytes:
                    await refuse(MessageTooLarge(f"the request is larger than {self._most_bytes} bytes"))
                    return
                if self._waiting > self._most_waiting:
                    await refuse(_busy("requests of too many bytes are being received"))
                    return
            if self._in_flight >= self._most_in_flight:
                await refuse(_busy(f"{self._in_flight} requests are in progress"))
                return
            self._in_flight += 1
            try:
                await self._inner(scope, _again(bytes(body), receive), send)
            finally:
                self._in_flight -= 1
        finally:
            self._waiting -= len(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives the body in one message, and after it what the connection tells."""
    told = False

    async def receive_again() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _busy(message: str) -> Unavailable:
    return Unavailable(message, reason="OVERLOADED")


def _as_connect(error: CitewellError) -> tuple[int, _Headers, bytes]:
    details = [
        {"type": each.type_url.rpartition("/")[2], "value": base64.b64encode(each.value).decode().rstrip("=")}
        for each in to_status(error).details
    ]
    told = {"code": error.code.name.lower(), "message": error.message, "details": details}
    status = _STATUSES[error.code]
    again = [(b"retry-after", b"1")] if status == 503 else []
    return status, [(b"content-type", b"application/json"), *again], json.dumps(told).encode()


def _as_grpc_web(error: CitewellError) -> tuple[int, _Headers, bytes]:
    details = base64.b64encode(to_status(error).SerializeToString()).rstrip(b"=")
    headers = [
        (b"content-type", b"application/grpc-web+proto"),
        (b"grpc-status", str(int(error.code)).encode()),
        (b"grpc-message", quote(error.message, safe=" ").encode()),
        (b"grpc-status-details-bin", details),
    ]
    return 200, headers, b""


async def _refuse(
    receive: Receive, send: Send, most_unread: int, status: int, headers: _Headers, content: bytes
) -> None:
    """Answers with an error, then closes the connection.

    The rest of the request is read first and thrown away, up to a limit: when a connection with unread bytes is closed,
    the client may see "connection reset" instead of the answer.
    """
    headers = [*headers, (b"content-length", str(len(content)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    while most_unread > 0:
        part = await receive()
        most_unread = most_unread - len(part.get("body", b"")) if part.get("more_body") else 0
    await send({"type": "http.response.body", "body": b""})
