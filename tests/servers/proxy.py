"""A TCP proxy that can cut, delay, reset or stall connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable
from typing import Self, TypeVar

from tests.servers.processes import free_ports

_T = TypeVar("_T")


class Proxy:
    """Forwards connections on `port` to the target. The port stays the same until the proxy is closed."""

    def __init__(self, target_port: int | None = None) -> None:
        (self.port,) = free_ports(1)
        self.target_port = target_port
        """May be set later, because a server that advertises the proxy's port must know it before it starts."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._delay = 0.0
        self._open = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._cut(reset=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def restore(self) -> None:
        """Forwards again without disturbance. Data held back by blackhole() is delivered, as TCP would resend it."""
        self._run(self._restore())

    def cut(self) -> None:
        """Closes connections and refuses new ones."""
        self._run(self._cut(reset=False))

    def reset(self) -> None:
        """Resets connections; new ones are accepted."""
        self._run(self._reset())

    def delay(self, seconds: float) -> None:
        """Delays all data by so many seconds, in both directions."""
        self._delay = seconds

    def blackhole(self) -> None:
        """Keeps connections open, accepts new ones, and forwards nothing."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def _run(self, work: Awaitable[_T]) -> _T:
        async def awaited() -> _T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(10)

    async def _restore(self) -> None:
        self._delay = 0.0
        self._open.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _reset(self) -> None:
        await self._cut(reset=True)
        await self._restore()

    async def _cut(self, reset: bool) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        links = dict(self._links)
        for link, ends in links.items():
            for end in ends:
                if reset:  # with a linger time of 0 the socket sends RST instead of FIN
                    linger = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                end.transport.abort()
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links[link] = (writer,)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._links[link] = (writer, far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer))
                both.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass
        except* asyncio.CancelledError:
            pass
        finally:
            for end in self._links.pop(link):
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
