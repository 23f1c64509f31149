"""The state file of a load: what is staged, left out and loaded, so that a killed load goes on."""

from __future__ import annotations

import json
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from citewell.corpora.readers import Reject
from citewell.scholarly.publications import Event, Publication, Retraction

_EVENT_IDS = uuid.UUID("0c5b0f8e-6a44-5c53-8a39-0d1f1c0e7b52")
REJECTS = "CREATE TABLE IF NOT EXISTS rejects (file TEXT NOT NULL, line INTEGER NOT NULL, reason TEXT NOT NULL)"


@dataclass(frozen=True, slots=True)
class Loadable:
    """An event made of one paper and its contexts, and its place in the file."""

    number: int
    """How many papers have been read, this one included."""
    event: Event
    source: Reject
    """Its file and line, to be reported if it is refused."""


class Staging(ABC):
    """Papers of files on their way into the ledger, in one SQLite file."""

    def __init__(self, state: Path) -> None:
        self.state = state
        state.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(state)

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether all files have been read into the state file."""

    @abstractmethod
    def spill(self, on_read: Callable[[], None]) -> None:
        """Reads the files that were not read yet."""

    @abstractmethod
    def counts(self) -> tuple[int, int, int]:
        """Papers and contexts in all, and papers loaded so far."""

    @abstractmethod
    def publications(self) -> Iterator[Loadable]:
        """What is still to be loaded, in a fixed order."""

    def loaded(self, up_to: int, refused: list[Reject]) -> None:
        """Records durably that papers up to this number are loaded, and which were refused."""
        with self._db:
            for reject in refused:
                self._reject(reject)
            self._db.execute("UPDATE progress SET loaded = ?", (up_to,))

    def _reject(self, reject: Reject) -> None:
        self._db.execute("INSERT INTO rejects VALUES (?, ?, ?)", (reject.file, reject.line, reject.reason))

    def write_rejects(self, path: Path) -> int:
        """Writes the rejects to a file, one JSON object per line, and returns how many there are."""
        rows = self._db.execute("SELECT DISTINCT file, line, reason FROM rejects ORDER BY file, line").fetchall()
        if rows:
            keys = ("file", "line", "reason")
            lines = (json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
            path.write_text("".join(lines), encoding="utf-8")
        return len(rows)

    def close(self, *, forget: bool) -> None:
        """Closes the state file; with `forget`, deletes it, because nothing is left to load."""
        self._db.close()
        if forget:
            self.state.unlink()


def event_of(body: Publication | Retraction) -> Event:
    """The event that tells of it, with the same id whenever it is loaded."""
    return Event(str(uuid.uuid5(_EVENT_IDS, f"{body.paper_id}\n{body.revision}\n{body.content_hash()}")), body)
