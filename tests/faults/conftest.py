"""Selects the fault tests that run with --long only."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A short run cannot tell a growth of one per cent from noise, so memory is tested in long runs only."""
    return True if collection_path.name == "test_memory.py" and not config.getoption("long") else None
