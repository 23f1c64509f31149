"""What to do when this machine lacks what a test needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skips the test with one line that says what to install; in CI, where everything is to be there, fails it."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
