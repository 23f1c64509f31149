"""How a command ends when something is wrong: one line on standard error and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn


def fail(message: str, code: int = 1) -> NoReturn:
    """Ends the command with one line on standard error."""
    print(f"citewell: {message}", file=sys.stderr)
    raise SystemExit(code)
