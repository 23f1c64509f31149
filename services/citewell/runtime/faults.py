"""Named points at which a test can kill the process, to check what survives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

# Not a service's setting: operators never set it, and all services read the same variable.
VARIABLE = "CITEWELL_FAULT_POINT"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _from_environment() -> dict[str, Callable[[], None]]:
    """`after-encode` kills the process when it first reaches that point, `after-encode:3` the third time."""
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
"""What is called at each point. A test in the same process may add a function that raises."""


def point(name: str) -> None:
    """Calls what a test has set for this point; otherwise does nothing."""
    if action := actions.get(name):
        action()
