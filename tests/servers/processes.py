"""Starting and ending server processes, and waiting for conditions."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Different free ports. All are held open until the last is found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for holder in sockets:
            holder.bind(("127.0.0.1", 0))
        return [int(holder.getsockname()[1]) for holder in sockets]
    finally:
        for holder in sockets:
            holder.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0, every: float = 0.05) -> None:
    """Returns once the condition holds; fails with a description of it after the timeout."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(every)


def end(process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0) -> None:
    """Waits for a process that was asked to end; otherwise kills it and raises TimeoutError."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise TimeoutError(f"{process.args!r} did not end within {seconds:.0f} s:\n{tail(log)}") from None


def tail(log: Path, lines: int = 25) -> str:
    """The end of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
