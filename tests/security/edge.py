"""The edge in this process, and blocking work beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from citewell.edge.server import EdgeServer
from citewell.edge.settings import EdgeSettings
from citewell.runtime.server import ServiceProcess


@contextlib.asynccontextmanager
async def edge(settings: EdgeSettings) -> AsyncIterator[Callable[..., Any]]:
    """Serves; yields a function that runs blocking work in a thread."""
    process = ServiceProcess("edge", settings, EdgeServer(settings))
    task = asyncio.create_task(process.run())
    try:
        async with asyncio.timeout(20):
            while True:
                if task.done():
                    task.result()
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", settings.http_port))[1].close()
                    break
                await asyncio.sleep(0.02)
        yield asyncio.to_thread
    finally:
        process.stop()
        await asyncio.wait_for(task, 20)
