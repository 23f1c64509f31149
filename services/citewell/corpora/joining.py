"""Joins the parts of a corpus on disk: papers with their abstracts, citations and bibliographies, by any name.

Each file is staged in one transaction, so a killed load goes on with the next file; a file that has changed is staged
again. A paper's id is its preferred name (a DOI before an arXiv id before the source's own), and stays what it was
when another file adds names. A reference becomes the id of the paper that has one of its names, else of the one with
its title, else its preferred name: the id that the paper will have when it comes.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from citewell.corpora.file_names import SCHEME, FileNames
from citewell.corpora.formats import marking
from citewell.corpora.formats.documents import Abstract, Citation, Document, Format, Mark, Paragraph, Reference
from citewell.corpora.formats.identifiers import Name, preferred, title_key
from citewell.corpora.readers import Reject
from citewell.corpora.staging import REJECTS, Loadable, Staging, event_of
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.limits import MAX_PASSAGE
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.publications import InvalidPublication, Publication, Retraction, validate

_SCHEMA = f"""
CREATE TABLE progress (loaded INTEGER NOT NULL);
INSERT INTO progress VALUES (0);
CREATE TABLE files (name TEXT PRIMARY KEY, written INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE papers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, body TEXT NOT NULL,
    file TEXT NOT NULL, line INTEGER NOT NULL
);
CREATE TABLE names (name TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX names_by_id ON names (id);
CREATE TABLE titles (title TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE abstracts (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE citations (citing TEXT NOT NULL, cited TEXT NOT NULL, contexts TEXT NOT NULL);
CREATE INDEX citations_by_citing ON citations (citing);
{REJECTS}
"""
_LONGEST_PATH = 200
"""Bytes of a file's name with its folder, as part of a paper's id. In a longer one a hash stands for the folder."""
_SEVERAL = ""
"""Instead of an id: several papers have this title, so it finds none."""


class JoinedCorpus(Staging):
    """The publications of a folder in a foreign format."""

    def __init__(
        self, folder: Path, state: Path, form: Format, settle_seconds: float = 0, *, source: str = "", names: Path
    ) -> None:
        """A file that was written to within `settle_seconds` is left for the next time: it may not be complete.

        `source` stands before the names of files in ids; `names` is the file of `FileNames`.
        """
        super().__init__(state)
        self._folder, self._format, self._settle_seconds = folder, form, settle_seconds
        self._source, self._file_names = Path(source), FileNames(names, folder)
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'progress'").fetchone():
            with self._db as db:
                db.execute("BEGIN")
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)

    @property
    def ready(self) -> bool:
        return bool(self.counts()[0]) and not self.files()

    def files(self) -> list[Path]:
        """The files that are new or have changed since they were staged."""
        settled = time.time() - self._settle_seconds
        new = [path for path in self._format.files(self._folder) if not self._is_staged(path)]
        return [path for path in new if path.stat().st_mtime <= settled or not self._settle_seconds]

    def _is_staged(self, path: Path) -> bool:
        name = str(path.relative_to(self._folder))
        row = self._db.execute("SELECT written, size FROM files WHERE name = ?", (name,)).fetchone()
        return bool(row == _stamp(path))

    def spill(self, on_read: Callable[[], None]) -> None:
        if not self._format.files(self._folder):
            raise FileNotFoundError(f"{self._folder} holds no {' or '.join(self._format.patterns)}")
        for path in self.files():
            self._stage(path, on_read)

    def _stage(self, path: Path, on_read: Callable[[], None]) -> None:
        """Reads one file in one transaction."""
        name, stamp = str(path.relative_to(self._folder)), _stamp(path)
        with self._db as db:
            db.execute("BEGIN")
            try:
                for part in self._format.read(path, lambda reject: self._reject(replace(reject, file=name))):
                    on_read()
                    match part:
                        case Document():
                            within = self._source / Path(name).parent
                            names = tuple(_with_folder(each, within) for each in part.names)
                            self._add(replace(part, names=names), name, written=stamp[0])
                        case Abstract(paper, text):
                            db.execute("INSERT OR REPLACE INTO abstracts VALUES (?, ?)", (str(paper), text))
                        case Citation(citing, cited, contexts):
                            row = (str(citing), str(cited), json.dumps(contexts, ensure_ascii=False))
                            db.execute("INSERT INTO citations VALUES (?, ?, ?)", row)
            except (OSError, EOFError, zlib.error) as error:  # a gzip file that is cut off or damaged
                self._reject(Reject(name, 0, f"cannot be read to its end: {error}"))
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, *stamp))

    def _add(self, document: Document, file: str, written: int) -> None:
        own = preferred(document.names)
        if own is None:
            self._reject(Reject(file, document.line, "no identifier that could be the paper's id"))
            return
        known = [found for name in document.names if (found := self._id_of_name(name))]
        paper_id, revision = (known or [str(own)])[0], document.revision or written
        if paper_id.startswith(f"{SCHEME}:") and (other := self._file_names.other(paper_id, document)):
            why = f"{paper_id} would replace {other}: load this folder with --source NAME, which stands in its ids"
            self._reject(Reject(file, document.line, why))
            return
        there = self._db.execute("SELECT revision FROM papers WHERE id = ?", (paper_id,)).fetchone()
        if there and there[0] > revision:
            self._reject(Reject(file, document.line, f"{paper_id} was there before, as a later revision"))
            return
        self._db.execute("DELETE FROM papers WHERE id = ?", (paper_id,))
        self._db.execute(
            "INSERT INTO papers (id, revision, body, file, line) VALUES (?, ?, ?, ?, ?)",
            (paper_id, revision, _packed(document), file, document.line),
        )
        names = ((str(name), paper_id) for name in document.names)
        self._db.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", names)
        if key := title_key(document.title):
            self._db.execute(
                "INSERT INTO titles VALUES (?1, ?2) ON CONFLICT DO UPDATE SET id = ?3 WHERE id <> ?2",
                (key, paper_id, _SEVERAL),
            )

    def close(self, *, forget: bool) -> None:
        self._file_names.close()
        super().close(forget=forget)

    def counts(self) -> tuple[int, int, int]:
        papers = self._db.execute("SELECT max(number) FROM papers").fetchone()[0] or 0
        citations = self._db.execute("SELECT count(*) FROM citations").fetchone()[0]
        return papers, citations, self._db.execute("SELECT loaded FROM progress").fetchone()[0]

    def publications(self) -> Iterator[Loadable]:
        loaded = self.counts()[2]
        columns = "number, id, revision, body, file, line"
        rows = self._db.execute(f"SELECT {columns} FROM papers WHERE number > ? ORDER BY number", (loaded,))
        for number, paper_id, revision, body, file, line in rows:
            document = _unpacked(body)
            source = Reject(file, line, "")
            told = (
                Retraction(paper_id, revision, "retracted, says its source")
                if document.retracted
                else self._publication(paper_id, revision, document, source)
            )
            try:
                validate(told)
            except InvalidPublication as error:
                self._reject(replace(source, reason=str(error)))
            else:
                yield Loadable(number, event_of(told), source)

    def _publication(self, paper_id: str, revision: int, document: Document, source: Reject) -> Publication:
        names = [row[0] for row in self._db.execute("SELECT name FROM names WHERE id = ? ORDER BY name", (paper_id,))]
        ids = {key: found for key, each in document.references.items() if (found := self._id_of(each)) != paper_id}
        cited, contexts = self._citations(names, paper_id)
        return Publication(
            paper_id=paper_id,
            revision=revision,
            title=document.title,
            abstract=document.abstract or self._abstract(names),
            authors=document.authors,
            venue=document.venue,
            published=document.published,
            external_ids=tuple(ExternalId(*name.split(":", 1)) for name in names),
            reference_ids=tuple(sorted({found for found in (*ids.values(), *cited) if found})),
            passages=tuple(self._passages(document, ids, source)),
            masked_contexts=tuple(contexts),
        )

    def _passages(self, document: Document, ids: dict[str, str], source: Reject) -> Iterator[Any]:
        for paragraph in document.paragraphs:
            found = marking.passage(paragraph, lambda key: ids.get(key, ""))
            if found is not None and len(found.text) > MAX_PASSAGE:
                self._reject(replace(source, reason=f"a paragraph of {len(found.text)} characters was left out"))
            elif found is not None:
                yield found

    def _citations(self, names: list[str], paper_id: str) -> tuple[set[str], list[MaskedContext]]:
        """Whom other files say that the paper cites, and in which sentences."""
        cited, contexts = set[str](), list[MaskedContext]()
        for name in names:
            for target, told in self._db.execute("SELECT cited, contexts FROM citations WHERE citing = ?", (name,)):
                found = self._id_of_name(Name(*target.split(":", 1))) or target
                if found == paper_id:
                    continue
                cited.add(found)
                sentences = [sentence for sentence in json.loads(told) if len(sentence) <= MAX_PASSAGE]
                if sentences:
                    surnames, year = self._about(found)
                    contexts += [MaskedContext(marking.masked(each, surnames, year), found) for each in sentences]
        return cited, contexts

    def _about(self, paper_id: str) -> tuple[list[str], int]:
        """The surnames of a paper's authors, and its year."""
        row = self._db.execute("SELECT body FROM papers WHERE id = ?", (paper_id,)).fetchone()
        if row is None:
            return [], 0
        document = _unpacked(row[0])
        return [author.split()[-1] for author in document.authors if author.split()], document.published.year

    def _abstract(self, names: list[str]) -> str:
        for name in names:
            if row := self._db.execute("SELECT text FROM abstracts WHERE name = ?", (name,)).fetchone():
                return str(row[0])
        return ""

    def _id_of(self, reference: Reference) -> str:
        """The id of a cited paper; empty where nothing names it."""
        for name in reference.names:
            if found := self._id_of_name(name):
                return found
        if key := title_key(reference.title):
            row = self._db.execute("SELECT id FROM titles WHERE title = ?", (key,)).fetchone()
            if row and row[0] != _SEVERAL:
                return str(row[0])
        own = preferred(reference.names)
        return str(own) if own else ""

    def _id_of_name(self, name: Name) -> str:
        row = self._db.execute("SELECT id FROM names WHERE name = ?", (str(name),)).fetchone()
        return str(row[0]) if row else ""


def state_name(folder: Path, form: Format, source: str = "") -> str:
    """The name of the state file of a folder: the same for every load of it in this format and as this source."""
    told = "\n".join([form.name, str(folder.resolve()), *([source] if source else [])])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _with_folder(name: Name, folder: Path) -> Name:
    """A file's name with the folder it lies in: "main.xml" may lie in every one. Other names stay as they are."""
    if name.scheme != SCHEME or folder == Path():
        return name
    value = f"{folder.as_posix()}/{name.value}"
    if len(value.encode()) > _LONGEST_PATH:
        value = f"{hashlib.sha256(folder.as_posix().encode()).hexdigest()[:16]}/{name.value}"
    return Name(SCHEME, value)


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return int(about.st_mtime), about.st_size


def _packed(document: Document) -> str:
    return json.dumps(asdict(document), ensure_ascii=False)


def _unpacked(text: str) -> Document:
    told = json.loads(text)
    references = {
        key: Reference(tuple(Name(*name) for name in each["names"]), each["title"])
        for key, each in told["references"].items()
    }
    paragraphs = tuple(
        Paragraph(
            each["text"],
            tuple(Mark(mark["start"], mark["end"], tuple(mark["keys"])) for mark in each["marks"]),
            each["section"],
        )
        for each in told["paragraphs"]
    )
    plain = {name: told[name] for name in ("line", "title", "abstract", "venue", "revision", "retracted")}
    return Document(
        names=tuple(Name(*name) for name in told["names"]),
        authors=tuple(told["authors"]),
        published=PartialDate(**told["published"]),
        references=references,
        paragraphs=paragraphs,
        **plain,
    )
