"""Files that are replaced while a process runs: certificates, tokens, keys, policies."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from citewell.runtime import telemetry
from citewell.runtime.settings import UnknownSetting

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""How old a look at the files may be before they are looked at again."""

_Stamp = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """What is read from some files, and read again when one of them was replaced.

    Raises UnknownSetting if the first reading does. A later reading that fails is logged, and the value before stays.
    """

    def __init__(
        self,
        what: str,
        paths: Callable[[], tuple[Path, ...]],
        read: Callable[[], T],
        *,
        every: float | None = None,
    ) -> None:
        self._what, self._paths, self._read = what, paths, read
        self._every = LOOK_SECONDS if every is None else every
        # Stamped before reading: a file that is replaced meanwhile is read once more.
        self._stamp, self._value = _stamp(paths()), read()
        self._looked = time.monotonic()
        self.generation = 0
        """Grows with each new value."""

    def value(self) -> T:
        """The newest value."""
        self.look()
        return self._value

    def look(self) -> None:
        """Reads the files again if they were replaced and the last look is old enough."""
        now = time.monotonic()
        if now - self._looked < self._every:
            return
        self._looked = now
        stamp = _stamp(self._paths())
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._value = self._read()
        except UnknownSetting as error:
            telemetry.logger.error("reload", what=self._what, problem=str(error), kept="the one before")
            return
        self.generation += 1
        telemetry.logger.info("reload", what=self._what)


def _stamp(paths: tuple[Path, ...]) -> _Stamp:
    """Changes when a file is written, replaced, or appears; symbolic links are followed."""

    def of(path: Path) -> tuple[int, int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    return tuple(map(of, paths))
