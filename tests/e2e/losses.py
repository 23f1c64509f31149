"""Takes services away from a running system, and gives them back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.e2e.conftest import Running


@contextmanager
def killed(running: Running, service: str) -> Iterator[None]:
    """Kills the process; at the end it runs again."""
    running.stack.kill(service)
    try:
        yield
    finally:
        running.stack.start([service])
        running.stack.wait([service])


@contextmanager
def frozen(running: Running, service: str) -> Iterator[None]:
    """Freezes the process with SIGSTOP: it answers nothing, but its connections stay open."""
    pid = running.stack.processes[service].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def reconfigured(running: Running, service: str, **settings: str) -> Iterator[None]:
    """Restarts the service with other settings, named without the prefix; at the end it runs as before."""
    usual = running.stack.settings
    _restarted(running, service, {**usual, **{f"CITEWELL_{service.upper()}__{key}": settings[key] for key in settings}})
    try:
        yield
    finally:
        _restarted(running, service, usual)


def _restarted(running: Running, service: str, settings: Mapping[str, str]) -> None:
    running.stack.stop([service])
    running.stack.settings = settings
    running.stack.start([service])
    running.stack.wait([service])
