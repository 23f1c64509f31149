"""The edge's ASGI application: the RPCs, their OpenAPI description, health, and the page."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import grpc

from citewell import __version__
from citewell.edge.connect import ConnectService
from citewell.edge.openapi import openapi
from citewell.edge.requests import Application, Receive, Scope, Send, WholeRequests
from citewell.edge.settings import EdgeSettings
from citewell.recommender.v1 import recommender_pb2

_SERVICE = recommender_pb2.DESCRIPTOR.services_by_name["RecommenderService"]
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in ("page", "answers", "service")},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
# The page loads nothing from other origins, and no other page may embed it in a frame.
_PAGE_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]
_CORS_METHODS = b"POST, GET, OPTIONS"
# Those of Connect and gRPC-Web, and those that are passed on to the recommender.
_CORS_HEADERS = (
    b"content-type, connect-protocol-version, connect-timeout-ms, connect-accept-encoding, connect-content-encoding, "
    b"grpc-timeout, grpc-encoding, grpc-accept-encoding, x-grpc-web, x-user-agent, authorization, traceparent, "
    b"tracestate"
)
# An error before the first message has its status in headers; a browser hides headers that are not named here.
_CORS_EXPOSED = (
    b"grpc-status, grpc-message, grpc-status-details-bin, grpc-encoding, connect-content-encoding, content-encoding, "
    b"retry-after"
)


def application(channel: grpc.aio.Channel, settings: EdgeSettings) -> Application:
    """The ASGI application."""
    rpcs = ConnectService(
        _SERVICE,
        channel,
        settings.max_request_megabytes << 20,
        settings.default_deadline_seconds,
        settings.longest_deadline_seconds,
    )
    most = settings.max_request_megabytes << 20
    calls = WholeRequests(rpcs, settings.max_in_flight, most, settings.max_receiving_megabytes << 20)
    files = {"/openapi.json": (json.dumps(openapi(_SERVICE, __version__)).encode(), "application/json")}
    if settings.page:
        folder = resources.files("citewell.edge") / "page"
        files |= {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path.startswith(rpcs.path + "/"):
            await calls(scope, receive, send)
        elif path in files and method in ("GET", "HEAD"):
            body, kind = files[path]
            await _respond(send, 200, b"" if method == "HEAD" else body, kind, _PAGE_HEADERS)
        elif path == "/healthz":
            await _respond(send, 200, b"ok\n", "text/plain")
        else:
            await _respond(send, 404, f"nothing is served at {path}\n".encode(), "text/plain; charset=utf-8")

    return _with_cors(answer, frozenset(settings.allowed_origins))


async def _respond(
    send: Send, status: int, body: bytes, kind: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    told = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


def _with_cors(inner: Application, allowed: frozenset[str]) -> Application:
    """Lets pages of the allowed origins call; answers their preflight requests."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        origin = dict(scope.get("headers", ())).get(b"origin", b"").decode("latin-1")
        if not origin or not (origin in allowed or "*" in allowed):
            await inner(scope, receive, send)
            return
        headers = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS":
            headers += [
                (b"access-control-allow-methods", _CORS_METHODS),
                (b"access-control-allow-headers", _CORS_HEADERS),
                (b"access-control-max-age", b"7200"),
            ]
            await _respond(send, 204, b"", "text/plain", headers)
            return

        headers.append((b"access-control-expose-headers", _CORS_EXPOSED))

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await inner(scope, receive, with_headers)

    return answer
