"""Services that run in the test's own process."""

from __future__ import annotations

import asyncio

import grpc.aio

from citewell.runtime.channels import require_serving
from citewell.runtime.errors import CitewellError


async def until_serving(channel: grpc.aio.Channel, service: str, seconds: float = 20) -> None:
    """Waits until the service says that it serves. Before that, calls without `wait_for_ready` fail."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                await require_serving(channel, service)
            except CitewellError:
                await asyncio.sleep(0.02)
            else:
                return
