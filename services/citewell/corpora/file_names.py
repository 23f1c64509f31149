"""Papers that are known by their file's name alone, over all loads that share a data folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from citewell.corpora.formats.documents import Document

SCHEME = "file"
_TABLE = """
CREATE TABLE IF NOT EXISTS names (id TEXT PRIMARY KEY, folder TEXT NOT NULL, title TEXT NOT NULL) WITHOUT ROWID
"""


class FileNames:
    """Tells when a file's name already stands for another paper, which a load would replace.

    The same paper may come from another folder, e.g. when its folder was moved: its title shares most of its words.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        """`path` is where names are kept, `folder` the one that is being read."""
        self._folder = str(folder.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute(_TABLE)

    def other(self, paper_id: str, document: Document) -> str:
        """Which other paper has this id, in words; empty if none has, and then the id is this paper's."""
        row = self._db.execute("SELECT folder, title FROM names WHERE id = ?", (paper_id,)).fetchone()
        if row and row[0] != self._folder and not _same(row[1], document.title):
            return f"{row[1]!r} of {row[0]}"
        if row != (self._folder, document.title):
            self._db.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (paper_id, self._folder, document.title))
        return ""

    def close(self) -> None:
        self._db.close()


def _same(title: str, other: str) -> bool:
    words, others = set(title.casefold().split()), set(other.casefold().split())
    return 2 * len(words & others) > max(len(words), len(others))
