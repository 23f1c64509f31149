"""Starts and stops the edge: one channel to the recommender, one HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from functools import partial

import grpc
import uvicorn

from citewell.edge.application import application
from citewell.edge.settings import EdgeSettings
from citewell.edge.slow_clients import timed_protocol
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import Unavailable
from citewell.runtime.health import Check
from citewell.runtime.settings import UnknownSetting
from citewell.runtime.telemetry import logger
from citewell.runtime.tls import http_context


class EdgeServer:
    """Serves HTTP, and the health checks that every service has."""

    grpc_services = ("citewell.edge",)
    """Its name in health checks; there is no gRPC service of that name."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._settings = settings
        self._http: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def register(self, server: grpc.aio.Server) -> None:
        """Does nothing: the edge has no gRPC service of its own."""

    async def start(self) -> None:
        """Opens the channel and the HTTP port."""
        settings = self._settings
        context = http_context(settings.tls) if settings.tls.certificate else None
        listening = _listen(settings.host, settings.http_port)
        self._channel = open_channel(settings.recommender_address, settings.client_tls, settings.max_message_megabytes)
        told = uvicorn.Config(
            application(self._channel, settings),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=settings.max_connections,
            http=timed_protocol(settings.receive_seconds, settings.send_seconds),
            timeout_graceful_shutdown=max(1, int(settings.grace_seconds)),
            ssl_context_factory=(lambda *_: context) if context else None,
        )
        self._http = uvicorn.Server(told)
        # `runtime.server` handles signals.
        self._http.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        self._serving = asyncio.create_task(self._http.serve(sockets=[listening]))
        while not self._http.started:
            if self._serving.done():
                self._serving.result()
                raise Unavailable("the HTTP server ended while it started", stage="edge")
            await asyncio.sleep(0.01)
        scheme = "https" if context else "http"
        logger.info("HTTP", address="{}://{}:{}".format(scheme, *listening.getsockname()[:2]))

    async def check(self) -> None:
        """Raises if HTTP is no longer served. A lost recommender shows in answers, not in readiness."""
        if self._serving is None or self._serving.done():
            raise Unavailable("the HTTP server ended", stage="edge")

    def dependencies(self) -> Mapping[str, Check]:
        return {"recommender": partial(require_serving, self._channel, "citewell.recommender.v1.RecommenderService")}

    async def stop(self) -> None:
        if self._http and self._serving:
            self._http.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
            await self._channel.close()


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UnknownSetting(
            f"HTTP cannot listen on {host}:{port}: {error.strerror}; set CITEWELL_EDGE__HTTP_PORT"
        ) from None
    return listening
