"""How commands reach the services: addresses from `up` or the command line, TLS, one deadline for the whole command."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from citewell.client import AsyncCitewell, Tls
from citewell.client.connection import connect
from citewell.commands.failing import WRONG_USAGE, fail
from citewell.commands.stack import DEFAULT_DATA, DEFAULT_PORT_BASE, SERVICES, State
from citewell.runtime import deadlines

T = TypeVar("T")

PANEL = "Connection"
DataOption = Annotated[
    Path, typer.Option("--data", help="The folder that `up` was given: tells where the services listen.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command calls, how, and for how long."""

    data: Path = DEFAULT_DATA
    address: str = ""
    """Empty = what `up` started over the data folder, else the default port on this machine."""
    tls: Tls | None = None
    timeout: float = 30.0
    token: Path | None = None

    def address_of(self, service: str) -> str:
        """Where a service listens."""
        if self.address:
            return self.address
        state = State.read(self.data)
        return state.addresses[service] if state else f"127.0.0.1:{DEFAULT_PORT_BASE + SERVICES[service]}"

    def client(self, service: str) -> AsyncCitewell:
        """A client of the recommender or of ingestion."""
        return AsyncCitewell(
            **{service: self.address_of(service)}, tls=self.tls, token=self.token, timeout=self.timeout
        )

    @asynccontextmanager
    async def channel(self, service: str) -> AsyncIterator[grpc.aio.Channel]:
        """A channel to a service, closed at the end."""
        channel = connect(self.address_of(service), self.tls, self.token)
        try:
            yield channel
        finally:
            await channel.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of calls that may take the command's timeout together."""

        async def limited() -> T:
            with deadlines.within(self.timeout):
                return await work

        return asyncio.run(limited())


def _option(name: str, help: str, envvar: str | None = None, **more: Any) -> Any:
    return typer.Option(name, help=help, envvar=envvar, rich_help_panel=PANEL, **more)


@dataclass(frozen=True, slots=True)
class _Connection:
    """The options of every command that calls a service."""

    data: DataOption = DEFAULT_DATA
    address: Annotated[str, _option("--address", "host:port of the service; default: what `up` started.")] = ""
    timeout: Annotated[float, _option("--timeout", "Deadline in seconds.", min=0.01)] = 30.0
    tls: Annotated[bool, _option("--tls", "Speak TLS; implied by the options below.", "CITEWELL_TLS")] = False
    tls_ca: Annotated[
        Path | None, _option("--tls-ca", "PEM bundle to trust instead of the system's.", "CITEWELL_TLS_CA")
    ] = None
    tls_cert: Annotated[Path | None, _option("--tls-cert", "PEM certificate of this client.", "CITEWELL_TLS_CERT")] = (
        None
    )
    tls_key: Annotated[Path | None, _option("--tls-key", "PEM key of --tls-cert.", "CITEWELL_TLS_KEY")] = None
    tls_name: Annotated[
        str, _option("--tls-name", "Name in the server's certificate, if not the host.", "CITEWELL_TLS_NAME")
    ] = ""

    token_file: Annotated[
        Path | None, _option("--token-file", "File with the bearer token to send.", "CITEWELL_TOKEN_FILE")
    ] = None

    def target(self) -> Target:
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key or self.tls_name):
            state = None if self.address else State.read(self.data)
            ca, certificate, key = map(Path, state.tls) if state and state.tls else (None, None, None)
            operator = Tls(ca, certificate, key) if ca else None
            return Target(self.data, self.address, operator, self.timeout, self.token_file)
        try:
            tls = Tls(self.tls_ca, self.tls_cert, self.tls_key, self.tls_name)
        except ValueError:
            fail("--tls-cert and --tls-key are given together or not at all", WRONG_USAGE)
        return Target(self.data, self.address, tls, self.timeout, self.token_file)


def calls_services(
    timeout: float = 30.0, *, takes_address: bool = True
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Gives a command the connection options; it gets them as one argument, `target`."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "target"]
        hints = inspect.get_annotations(_Connection, eval_str=True)
        defaults = {each.name: each.default for each in fields(_Connection)} | {"timeout": timeout}
        names = [name for name in hints if takes_address or name != "address"]
        connection = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name])
            for name in names
        ]

        @wraps(command)
        def wrapper(**values: Any) -> T:
            target = _Connection(**{name: values.pop(name) for name in names}).target()
            return command(target=target, **values)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + connection
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate
