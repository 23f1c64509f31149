"""Temporary folders in memory."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = "/dev/shm"


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where the machine has one: creating a shard syncs to disk a dozen times."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="citewell-", dir=parent) as folder:
        yield Path(folder)
