"""What the tests of the profiler share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_folder import memory_folder
from tests.tiny_models import write_tiny_encoder


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made


@pytest.fixture
def encoder(folder: Path) -> Path:
    return write_tiny_encoder(folder / "tiny")
