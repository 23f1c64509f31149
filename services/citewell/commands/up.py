"""`citewell up`: the services and the HTTP edge on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from citewell.commands.failing import WRONG_USAGE, fail
from citewell.commands.securing import secure
from citewell.commands.stack import (
    DEFAULT_DATA,
    DEFAULT_PORT_BASE,
    Stack,
    StackError,
    State,
    choose_ports,
    ended,
    supervision,
)
from citewell.runtime.errors import FailedPrecondition

_MOST_RESTART_PAUSE_SECONDS = 30.0
_LOCK_SECONDS = 1.0
"""Other commands hold the supervisor's lock for a moment to see whether it is held."""

console = Console(highlight=False)


def up(
    data: Annotated[Path, typer.Option(help="Folder of ledger, log, index and logs.")] = DEFAULT_DATA,
    port_base: Annotated[
        int, typer.Option(min=0, max=65000, help="First of six ports, and HTTP ten above; 0 takes free ones.")
    ] = DEFAULT_PORT_BASE,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the services serve; `citewell down` stops them.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Use the ledger, log and store that the settings name, not files here."),
    ] = False,
    secured: Annotated[
        bool,
        typer.Option("--secured", help="Turn on TLS and an access policy; new certificates are written to `security`."),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Fail if the services do not serve after so many seconds.")] = 180.0,
) -> None:
    """Starts the five services and the page for writers, and watches over them until Ctrl-C or `citewell down`."""
    running = State.read(data)
    if running is not None:
        fail(f"already up over {data} (process {running.supervisor}); `citewell down --data {data}` stops it")
    try:
        (data / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--data is '{data}', which cannot be a folder for the services: {error.strerror}", WRONG_USAGE)
    try:
        if detach:
            _detach(data, timeout)
        else:
            lock = supervision(data)
            stack = Stack(data, choose_ports(port_base), cluster)
            if secured:
                told = secure(stack.data / "security")
                stack.settings, stack.tls = told.settings, told.operator
            asyncio.run(lock.acquire(_LOCK_SECONDS))
            _supervise(stack, timeout)
    except (StackError, FailedPrecondition) as error:
        fail(str(error))


def _detach(data: Path, timeout: float) -> None:
    """Runs the same command without --detach as a process in a session of its own."""
    log = data / "logs" / "up.log"
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "citewell.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + timeout + 10
    while (state := State.read(data)) is None:
        if ended(supervisor, 0.1) is not None:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise StackError(lines[-1].removeprefix("citewell: ") if lines else f"the supervisor ended; see {log}")
        if time.monotonic() > end:
            supervisor.terminate()
            raise StackError(f"not up after {timeout:.0f} s; see {log}")
    _print_addresses(state)


def _supervise(stack: Stack, timeout: float) -> None:
    stopping = threading.Event()
    try:
        stack.start()
        stack.wait(seconds=timeout)
        # Until here a signal ends the start; from here on it ends the watch.
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: stopping.set())
        tls = [str(path) for path in (stack.tls.ca, stack.tls.certificate, stack.tls.key)] if stack.tls else []
        state = State(os.getpid(), stack.addresses, tls)
        state.write(stack.data)
        _print_addresses(state)
        _watch(stack, stopping)
    finally:
        State.forget(stack.data)
        stack.stop()
    console.print("stopped")


def _watch(stack: Stack, stopping: threading.Event) -> None:
    """Restarts services that end by themselves; the pause before a restart doubles each time."""
    pauses = dict.fromkeys(stack.processes, 1.0)
    due: dict[str, float] = {}
    while not stopping.wait(0.5):
        for service, process in list(stack.processes.items()):
            code = process.poll()
            if code is None:
                continue
            if service not in due:
                console.print(f"the {service} ended with code {code}; starting it again in {pauses[service]:.0f} s")
                due[service] = time.monotonic() + pauses[service]
                pauses[service] = min(2 * pauses[service], _MOST_RESTART_PAUSE_SECONDS)
            elif time.monotonic() >= due[service]:
                del due[service]
                stack.start([service])


def _print_addresses(state: State) -> None:
    for service, address in sorted(state.addresses.items(), key=lambda item: item[1]):
        if service != "http":
            console.print(f"{service:<12} {address}")
    scheme = "https" if state.tls else "http"
    console.print(f"page and JSON API: {scheme}://{state.addresses['http']}/")
    if state.tls:
        folder = Path(state.tls[0]).parent
        console.print(f"secured: authority {folder / 'ca.pem'}, token for the JSON API {folder / 'writer.token'}")
