"""`citewell down`: stops what `up` started."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from citewell.commands.failing import fail
from citewell.commands.stack import DEFAULT_DATA, SERVICES, STOP_SECONDS, State, alive


def down(data: Annotated[Path, typer.Option(help="The folder that `up` was given.")] = DEFAULT_DATA) -> None:
    """Stops the services; calls in flight are finished first."""
    state = State.read(data)
    if state is None:
        typer.echo(f"nothing is up over {data}")
        return
    try:
        os.kill(state.supervisor, signal.SIGTERM)
    except PermissionError:
        fail(f"process {state.supervisor} belongs to another user; stop it as that user")
    end = time.monotonic() + STOP_SECONDS * len(SERVICES)
    while alive(state.supervisor):
        if time.monotonic() > end:
            fail(f"process {state.supervisor} does not end; see {data / 'logs'}")
        time.sleep(0.05)  # only its parent can wait for a process, so this polls
    typer.echo("stopped")
