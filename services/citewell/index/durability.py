"""Syncs files to disk: whole folders, and one sync for all writers that wait at the same time (group commit)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from citewell.runtime.errors import Unavailable


def sync_tree(folder: Path) -> None:
    """Syncs every file below the folder, and the folders themselves, so that their entries are on disk too."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path) / name)
        _sync(Path(path))


def sync_new_entry(path: Path) -> None:
    """Syncs the folder that holds a new or renamed file or folder."""
    _sync(path.parent)


def _sync(path: Path) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # removed in the meantime, e.g. a write-ahead log that is no longer needed after a flush
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class GroupCommit:
    """Group commit: writers that arrive while a sync runs share the next one.

    A write is numbered before its writer asks for durability. A sync covers all writes whose numbers were given out
    before it began.
    """

    def __init__(self, sync: Callable[[], None], written: Callable[[], int]) -> None:
        """`sync` blocks until everything written is on disk; `written` tells the number of the latest write."""
        self._sync, self._written = sync, written
        self._durable = written()
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._failure = ""

    async def durable(self, number: int) -> None:
        """Returns when the write of that number, and all before it, are on disk."""
        self.require_working()
        if number <= self._durable:
            return
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        # Shielded: cancelling one caller must not cancel the sync that others wait for.
        await asyncio.shield(self._next)

    def require_working(self) -> None:
        """Raises Unavailable once a sync has failed.

        The kernel marks pages clean even when writing them failed, so a later sync would succeed without them.
        """
        if self._failure:
            raise Unavailable(
                f"the store could not be synced to disk ({self._failure}); it takes no writes until it is restarted",
                reason="STORE_NOT_SYNCED",
            )

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        self.require_working()
        number = self._written()
        try:
            await asyncio.to_thread(self._sync)
        except OSError as error:
            self._failure = error.strerror or str(error)
            self.require_working()
        self._durable = number
