"""A lock file that lets one process own a folder's files at a time. The kernel releases it when the process dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path

from citewell.runtime.errors import FailedPrecondition

_POLL_SECONDS = 0.05


class OwnerLock:
    """Held from `acquire` to `release`. `what` names the owned thing in error messages."""

    def __init__(self, path: Path, what: str, reason: str) -> None:
        self._path, self._what, self._reason = path, what, reason
        self._file: int | None = None

    async def acquire(self, wait_seconds: float) -> None:
        """Creates the folder if needed. Waits so long for an owner that is stopping, then raises FailedPrecondition.

        Does nothing when the lock is held already, so that a failed start may be repeated.
        """
        if self._file is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise FailedPrecondition(f"{self._what} cannot be used: {error.strerror}") from None
        try:
            until = time.monotonic() + wait_seconds
            while not _locked(file):
                if time.monotonic() >= until:
                    owner = os.pread(file, 32, 0).decode() or "unknown"
                    raise FailedPrecondition(
                        f"{self._what} is in use by process {owner}; only one process may use it at a time",
                        reason=self._reason,
                        owner=owner,
                    )
                await asyncio.sleep(_POLL_SECONDS)
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def is_held(self) -> bool:
        """Whether a process holds it now."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _locked(file)
        finally:
            os.close(file)

    def release(self) -> None:
        """Lets the next owner in; does nothing when the lock is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
