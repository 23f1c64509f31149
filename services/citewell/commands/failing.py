"""How a command ends: exit codes, and one line on standard error when something is wrong."""

from __future__ import annotations

import sys
from typing import NoReturn

from citewell.runtime.errors import CitewellError

FAILED = 1
"""A service refused or failed, or a check found faults."""
WRONG_USAGE = 2
"""An argument, an option or a setting is wrong; nothing was done."""
EXIT_CODES = "Exit codes: 0 done, 1 failed or faults found, 2 wrong usage or settings."


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Ends the command with one line on standard error."""
    print(f"citewell: {message}", file=sys.stderr)
    raise SystemExit(code)


def told(error: CitewellError) -> str:
    """The error in one line, with what to do about it."""
    hint = ""
    if "unreachable" in error.metadata:
        hint = "; `citewell up` starts all services here, --address names one elsewhere"
    elif error.retryable:
        hint = "; this may pass: try again"
    codes = ", ".join(dict.fromkeys((error.code.name, error.reason)))
    return f"{error.message} ({codes}){hint}"
