"""Which fault tests belong to the long suite alone."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Growth of one per cent cannot be told from noise in the time a short run has."""
    return True if collection_path.name == "test_memory.py" and not config.getoption("long") else None
