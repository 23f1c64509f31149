"""Temporary folders that no disk slows down."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MEMORY = "/dev/shm"


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """In memory where the machine has such a folder: creating a shard waits for the disk a dozen times."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="citewell-", dir=parent) as folder:
        yield Path(folder)
