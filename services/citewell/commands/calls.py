"""How commands reach the services: addresses from `up`, one channel a call, errors of our own tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from citewell.commands.stack import DEFAULT_DATA, DEFAULT_PORT_BASE, SERVICES, State
from citewell.runtime import deadlines
from citewell.runtime.channels import open_channel

T = TypeVar("T")

DataOption = Annotated[Path, typer.Option("--data", help="The folder that `up` was given.")]
AddressOption = Annotated[
    str, typer.Option("--address", help="host:port of the service, instead of what `up` started.")
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.01, help="Deadline in seconds.")]


def address_of(service: str, data: Path = DEFAULT_DATA, address: str = "") -> str:
    """Where a service listens: the address given, else what `up` wrote down, else the default port."""
    if address:
        return address
    state = State.read(data)
    return state.addresses[service] if state else f"127.0.0.1:{DEFAULT_PORT_BASE + SERVICES[service]}"


@asynccontextmanager
async def channel_to(service: str, data: Path = DEFAULT_DATA, address: str = "") -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a service, closed at the end."""
    channel = open_channel(address_of(service, data, address))
    try:
        yield channel
    finally:
        await channel.close()


def run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of calls that may take so many seconds together."""

    async def limited() -> T:
        with deadlines.within(seconds):
            return await work

    return asyncio.run(limited())
