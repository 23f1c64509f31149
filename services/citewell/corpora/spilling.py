"""Prepares a data set for loading: one publication per citing paper, in bounded memory, resumable after a kill.

All state is one SQLite file, named by a hash of the input. First all contexts are written to it in one transaction, to
be looked up by their citing paper. Then publications are made in file order. The number of loaded papers is recorded
after every chunk.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from citewell.corpora.readers import PaperRecord, Reject, read_contexts, read_papers, read_splits
from citewell.corpora.staging import REJECTS, Loadable, Staging, event_of
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import InvalidPublication, Publication, validate

_FILES = "papers.jsonl", "papers.jsonl.gz", "papers.json", "contexts.jsonl", "contexts.jsonl.gz", "contexts.json"
_SPLIT_FILES = "splits.json", "train.json", "val.json", "validation.json", "test.json"
_SCHEMA = """
CREATE TABLE progress (papers INTEGER NOT NULL, contexts INTEGER NOT NULL, loaded INTEGER NOT NULL);
CREATE TABLE papers (id TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE split (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE contexts (
    citing TEXT NOT NULL, cited TEXT NOT NULL, text TEXT NOT NULL, group_size INTEGER NOT NULL,
    published TEXT NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL
);
CREATE INDEX contexts_by_citing ON contexts (citing);
"""


def input_hash(folder: Path, *options: object) -> str:
    """A hash of the input files and options: a later run with the same hash may continue this one."""
    digest = hashlib.sha256(repr(options).encode())
    for name in (*_FILES, *_SPLIT_FILES):
        path = folder / name
        if path.exists():
            with path.open("rb") as stream:
                digest.update(name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


class Corpus(Staging):
    """The publications of one data set folder."""

    def __init__(self, folder: Path, state: Path, split: str = "") -> None:
        super().__init__(state)
        self._folder, self._split = folder, split
        self._papers_file = next((name for name in _FILES[:3] if (folder / name).exists()), _FILES[0])

    @property
    def ready(self) -> bool:
        """Whether an earlier run has read all files into the state file."""
        return bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'progress'").fetchone())

    def spill(self, on_read: Callable[[], None]) -> None:
        """Reads all files once into the state file, in one transaction."""
        with self._db as db:
            db.execute("BEGIN")
            for statement in (*_SCHEMA.split(";"), REJECTS):
                db.execute(statement)
            if self._split:
                keys = ((entry.key,) for entry in read_splits(self._folder, self._reject) if entry.split == self._split)
                db.executemany("INSERT OR IGNORE INTO split VALUES (?)", keys)
            number = 0
            for number, paper in enumerate(read_papers(self._folder, self._reject), start=1):
                on_read()
                if not db.execute("INSERT OR IGNORE INTO papers VALUES (?, ?)", (paper.id, number)).rowcount:
                    self._reject(Reject(self._papers_file, paper.line, f"paper {paper.id!r} was there before"))
            contexts = self._spill_contexts(db, on_read)
            db.execute("INSERT INTO progress VALUES (?, ?, 0)", (number, contexts))

    def _spill_contexts(self, db: sqlite3.Connection, on_read: Callable[[], None]) -> int:
        kept = 0
        file = next((name for name in _FILES[3:] if (self._folder / name).exists()), _FILES[3])
        for context in read_contexts(self._folder, self._reject):
            on_read()
            if self._split and not self._in_split(context.citing_id, context.id):
                continue
            if not db.execute("SELECT 1 FROM papers WHERE id = ?", (context.citing_id,)).fetchone():
                self._reject(Reject(file, context.line, f"citing paper {context.citing_id!r} is not among the papers"))
                continue
            where = (str(context.published), file, context.line)
            row = (context.citing_id, context.cited_id, context.text, context.group, *where)
            db.execute("INSERT INTO contexts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            kept += 1
        return kept

    def _in_split(self, *keys: str) -> bool:
        return any(self._db.execute("SELECT 1 FROM split WHERE key = ?", (key,)).fetchone() for key in keys)

    def counts(self) -> tuple[int, int, int]:
        """Papers and contexts in all, and papers loaded so far."""
        papers, contexts, loaded = self._db.execute("SELECT papers, contexts, loaded FROM progress").fetchone()
        return papers, contexts, loaded

    def publications(self) -> Iterator[Loadable]:
        """What is still to be loaded, in file order."""
        loaded = self.counts()[2]
        for number, paper in enumerate(read_papers(self._folder, lambda _: None), start=1):
            first = self._db.execute("SELECT number FROM papers WHERE id = ?", (paper.id,)).fetchone()
            if number > loaded and first == (number,):
                source = Reject(self._papers_file, paper.line, "")
                publication = self._publication(paper, source)
                if publication is not None:
                    yield Loadable(number, event_of(publication), source)

    def _publication(self, paper: PaperRecord, source: Reject) -> Publication | None:
        """The paper with its valid contexts; None if the paper itself is invalid. Rejects what is invalid."""
        rows = self._db.execute(
            "SELECT cited, text, group_size, published, file, line FROM contexts WHERE citing = ? ORDER BY rowid",
            (paper.id,),
        ).fetchall()
        published = paper.published
        if not published.known and rows:
            published = PartialDate.parse(rows[0][3])
        publication = Publication(
            paper_id=paper.id,
            revision=paper.revision,
            title=paper.title,
            abstract=paper.abstract,
            venue=paper.venue,
            published=published,
        )
        contexts = []
        for cited, text, group_size, _, file, line in rows:
            context = MaskedContext(text, cited, group_size)
            try:
                validate(replace(publication, title="-", abstract="", masked_contexts=(context,)))
            except InvalidPublication as error:
                self._reject(Reject(file, line, str(error)))
            else:
                contexts.append(context)
        publication = replace(publication, masked_contexts=tuple(contexts))
        try:
            validate(publication)
        except InvalidPublication as error:
            self._reject(replace(source, reason=str(error)))
            return None
        return publication
