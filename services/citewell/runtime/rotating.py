"""A channel whose credentials change while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc

from citewell.runtime.files import Reloaded

# How long calls on a connection with replaced credentials may go on. Servers close connections earlier than that.
_LAST_CALLS_SECONDS = 600.0


class RotatingChannel(grpc.aio.Channel):
    """Opens a new connection when the files of its credentials were replaced, and sends the newest token.

    Calls in progress finish on the connection on which they began.
    """

    def __init__(
        self,
        connect: Callable[[], grpc.aio.Channel],
        credentials: Reloaded[grpc.ChannelCredentials] | None,
        token: Reloaded[str] | None,
    ) -> None:
        self._connect, self._credentials, self._token = connect, credentials, token
        self._generation = 0
        self._channel = connect()
        self._closing: set[asyncio.Task[None]] = set()

    def newest(self) -> grpc.aio.Channel:
        """The channel for a new call."""
        if self._credentials is None:
            return self._channel
        self._credentials.look()
        if self._credentials.generation != self._generation:
            self._generation = self._credentials.generation
            before, self._channel = self._channel, self._connect()
            task = asyncio.ensure_future(before.close(_LAST_CALLS_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return self._channel

    def headers(self, metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
        """The call's metadata, with the newest token."""
        own = (("authorization", f"Bearer {self._token.value()}"),) if self._token else ()
        return (*(metadata or ()), *own)

    async def close(self, grace: float | None = None) -> None:
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.newest().channel_ready()

    def unary_unary(self, *args: Any, **more: Any) -> Any:
        return _Method(self, "unary_unary", *args, **more)

    def unary_stream(self, *args: Any, **more: Any) -> Any:
        return _Method(self, "unary_stream", *args, **more)

    def stream_unary(self, *args: Any, **more: Any) -> Any:
        return _Method(self, "stream_unary", *args, **more)

    def stream_stream(self, *args: Any, **more: Any) -> Any:
        return _Method(self, "stream_stream", *args, **more)


class _Method:
    """A method of a stub: each call goes to the newest channel."""

    def __init__(self, channel: RotatingChannel, kind: str, method: str, *args: Any, **more: Any) -> None:
        self._channel, self._kind = channel, kind
        self._method, self._args, self._more = method.encode(), args, more
        self._made_on: grpc.aio.Channel | None = None
        self._made: Any = None

    def __call__(self, *args: Any, metadata: Any = None, **more: Any) -> Any:
        newest = self._channel.newest()
        if newest is not self._made_on:
            self._made = getattr(newest, self._kind)(self._method.decode(), *self._args, **self._more)
            self._made_on = newest
        return self._made(*args, metadata=self._channel.headers(metadata), **more)
