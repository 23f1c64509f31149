"""HTTP connections of clients that send or read too slowly are closed, so that they cannot keep out the others."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(receive_seconds: float, send_seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with time limits: to send a whole request, and to take more of an answer."""

    class TimedProtocol(H11Protocol):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._receiving: asyncio.TimerHandle | None = None
            self._sending: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_request()

        def _watch_request(self) -> None:
            """The time runs from the first wait for a request until its last byte."""
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                _cancel(self._receiving)
                self._receiving = None
            elif self._receiving is None:
                self._receiving = self.loop.call_later(receive_seconds, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._sending = self.loop.call_later(send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._sending)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._receiving)
            _cancel(self._sending)
            super().connection_lost(exc)

    return TimedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
