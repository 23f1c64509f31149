"""Named places where a process can be made to die, so that tests prove what survives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

# Read here and not in a service's settings: no operator sets it, and every process knows the same one.
VARIABLE = "CITEWELL_FAULT_POINT"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _from_environment() -> dict[str, Callable[[], None]]:
    """`after-encode` dies at the first visit of that point, `after-encode:3` at the third."""
    name, _, visit = os.environ.get(VARIABLE, "").partition(":")
    if not name:
        return {}
    left = int(visit or 1)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _die()

    return {name: count}


actions: dict[str, Callable[[], None]] = _from_environment()
"""What happens at each point; a test in the same process may put in a function that raises."""


def point(name: str) -> None:
    """Does nothing, unless a test asked for something to happen here."""
    if action := actions.get(name):
        action()
