"""Requests are received whole before they count as in progress: a slow sender holds memory, but no place."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

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

        async def refuse(status: int, code: str, message: str) -> None:
            self._waiting -= len(body)
            body.clear()
            unread = 4 * self._most_bytes if more else 0
            await _refuse(receive, send, unread, status, code, message)

        if any(_UNPRINTABLE.search(value) for _, value in scope["headers"]):
            await refuse(400, "invalid_argument", "a header has characters other than printable ASCII")
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
                    told = f"the request is larger than {self._most_bytes} bytes"
                    await refuse(429, "resource_exhausted", told)
                    return
                if self._waiting > self._most_waiting:
                    await refuse(503, "unavailable", "requests of too many bytes are being received")
                    return
            if self._in_flight >= self._most_in_flight:
                await refuse(503, "unavailable", f"{self._in_flight} requests are in progress")
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


async def _refuse(receive: Receive, send: Send, most_unread: int, status: int, code: str, message: str) -> None:
    """Answers with an error as Connect defines it, then closes the connection.

    The rest of the request is read first and thrown away, up to a limit: when a connection with unread bytes is closed,
    the client may see "connection reset" instead of the answer.
    """
    content = json.dumps({"code": code, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(b"connection", b"close"), *([(b"retry-after", b"1")] if status == 503 else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    while most_unread > 0:
        part = await receive()
        most_unread = most_unread - len(part.get("body", b"")) if part.get("more_body") else 0
    await send({"type": "http.response.body", "body": b""})
