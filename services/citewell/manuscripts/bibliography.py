"""Reads BibTeX, writes BibTeX and CSL-JSON, and matches entries with papers."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bibtexparser.entrypoint import parse_string, write_string
from bibtexparser.library import Library
from bibtexparser.model import Entry as BibtexEntry
from bibtexparser.model import Field, ImplicitComment, ParsingFailedBlock

from citewell.manuscripts.flow import Problem, Source
from citewell.scholarly.papers import ExternalId, Paper
from citewell.scholarly.words import words

logging.getLogger("bibtexparser").setLevel(logging.CRITICAL)  # problems are reported by line instead

_LATEX = re.compile(r"\\[a-zA-Z]+\s*|\\.|[{}$]")
_KEY = re.compile(r"@\w+\s*[{(]\s*([^\s,{}()=]+)")
_DOI = re.compile(r"10\.\d{4,9}/\S+")

_LITTLE = """
a an and are as at by can do does for from how in is it not of on or the to toward towards under via what when where
which who why with without
"""
_LITTLE_WORDS = frozenset(_LITTLE.split())
"""Words that tell nothing about a paper; a key takes the first other word of the title."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The fields of a bibliography entry that identify its paper."""

    key: str
    title: str = ""
    doi: str = ""
    arxiv: str = ""

    def names(self) -> frozenset[str]:
        """The names that identify the entry's paper: DOI, arXiv id, title."""
        return _names(self.title, self.doi, self.arxiv)


@dataclass(frozen=True, slots=True)
class Bibliography:
    """Entries by key, and what could not be read."""

    entries: dict[str, Entry] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    unread_keys: frozenset[str] = frozenset()
    """Keys of entries that cannot be read. The draft may cite them all the same."""
    unread_files: frozenset[str] = frozenset()
    """Names of files that hold text, and no entry that can be read."""
    _by_name: dict[str, list[str]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.entries.values():
            for name in entry.names():
                self._by_name.setdefault(name, []).append(entry.key)

    def keys_of(self, paper: Paper) -> list[str]:
        """The entries that name this paper by DOI, arXiv id or title."""
        return sorted({key for name in names_of(paper) for key in self._by_name.get(name, ())})


def read_bibtex(sources: Iterable[Source]) -> Bibliography:
    """All entries of some .bib files; of entries with the same key the first is used."""
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    unread_keys: set[str] = set()
    unread_files: set[str] = set()
    for source in sources:
        library = parse_string(source.text)
        for block in library.failed_blocks:
            problems.append(Problem(source.name, (block.start_line or 0) + 1, 1, _failure(block)))
            if key := _KEY.match(block.raw or ""):
                unread_keys.add(key[1])
        for found in library.entries:
            fields = {each.key.lower(): str(each.value) for each in found.fields}
            entries.setdefault(found.key, _entry(found.key, fields))
        stray = [block for block in library.blocks if isinstance(block, ImplicitComment | ParsingFailedBlock)]
        if stray and not library.entries:
            unread_files.add(source.name)
    return Bibliography(entries, tuple(problems), frozenset(unread_keys - entries.keys()), frozenset(unread_files))


def _failure(block: ParsingFailedBlock) -> str:
    """Why an entry cannot be read, in one line."""
    reason = str(getattr(block.error, "abort_reason", "") or block.error)
    return next(iter(reason.splitlines()), "") or "the entry cannot be read"


def _entry(key: str, fields: dict[str, str]) -> Entry:
    doi = _DOI.search(fields.get("doi", "") or fields.get("url", ""))
    is_arxiv = fields.get("archiveprefix", fields.get("eprinttype", "")).lower() == "arxiv"
    return Entry(
        key,
        _LATEX.sub("", fields.get("title", "")),
        doi[0] if doi else "",
        fields.get("eprint", "") if is_arxiv else "",
    )


def names_of(paper: Paper) -> frozenset[str]:
    """The names that identify a paper: DOI, arXiv id, title."""
    ids = {external.scheme: external.value for external in paper.external_ids}
    return _names(paper.title, ids.get("doi", ""), ids.get("arxiv", ""))


def _names(title: str, doi: str, arxiv: str) -> frozenset[str]:
    told = (
        ("title", " ".join(words(unicodedata.normalize("NFKC", title)))),
        ("doi", doi.lower()),
        ("arxiv", re.sub(r"v\d+$", "", arxiv.lower())),
    )
    return frozenset(f"{kind}:{value}" for kind, value in told if value)


class DraftKeys:
    """Keys for the papers that are suggested for one draft. A paper keeps the key that it got first."""

    def __init__(self, bibliography: Bibliography, used: Iterable[str] = ()) -> None:
        """`used`: keys that the draft uses beside those of its bibliography."""
        self._bibliography = bibliography
        self._used = frozenset(used)
        self._given: dict[str, str] = {}

    def of(self, papers: Sequence[Paper]) -> list[str]:
        """The draft's own key of each paper that its bibliography has, else a new one."""
        fresh = [paper for paper in papers if paper.id not in self._given]
        taken = [*self._bibliography.entries, *self._used, *self._given.values()]
        for paper, key in zip(fresh, new_keys(fresh, taken), strict=True):
            self._given[paper.id] = next(iter(self._bibliography.keys_of(paper)), key)
        return [self._given[paper.id] for paper in papers]


def new_keys(papers: Sequence[Paper], taken: Iterable[str]) -> list[str]:
    """One key per paper, like mueller2020great. A paper always gets the same key unless it is taken."""
    used = {key.lower() for key in taken}
    keys = []
    for paper in papers:
        family = paper.authors[0].replace(",", " ").split() if paper.authors else []
        surname = (family[0] if paper.authors and "," in paper.authors[0] else family[-1]) if family else "anonymous"
        said = [_ascii(each) for each in paper.title.split()]
        word = next((each for each in said if each and each not in _LITTLE_WORDS), next(filter(None, said), ""))
        stem = _ascii(surname) + (str(paper.published.year) if paper.published.year else "") + word
        stem = stem or "paper"
        key = stem
        for letter in _suffixes():
            if key.lower() not in used:
                break
            key = f"{stem}{letter}"
        used.add(key.lower())
        keys.append(key)
    return keys


def _suffixes() -> Iterable[str]:
    number = 0
    while True:
        letters, rest = "", number
        while True:
            letters = chr(ord("a") + rest % 26) + letters
            rest = rest // 26 - 1
            if rest < 0:
                break
        yield letters
        number += 1


def _ascii(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]", "", plain)


def to_bibtex(papers: Sequence[Paper], keys: Sequence[str]) -> str:
    """The papers as BibTeX entries."""
    library = Library([_bibtex_entry(paper, key) for paper, key in zip(papers, keys, strict=True)])
    return str(write_string(library))


def _bibtex_entry(paper: Paper, key: str) -> BibtexEntry:
    ids = _ids(paper.external_ids)
    kind = "inproceedings" if re.search(r"proc|conf|workshop|symposium", paper.venue, re.IGNORECASE) else "article"
    told = (
        ("title", "{" + _escaped(paper.title) + "}"),
        ("author", " and ".join(map(_author, paper.authors))),
        ("year", str(paper.published.year or "")),
        ("booktitle" if kind == "inproceedings" else "journal", _escaped(paper.venue)),
        ("doi", ids.get("doi", "")),
        ("eprint", ids.get("arxiv", "")),
        ("archiveprefix", "arXiv" if ids.get("arxiv") else ""),
    )
    return BibtexEntry(
        kind if paper.venue else "misc", key, [Field(name, value) for name, value in told if value.strip("{}")]
    )


def to_csl(papers: Sequence[Paper], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The papers as CSL-JSON items."""
    items = []
    for paper, key in zip(papers, keys, strict=True):
        ids = _ids(paper.external_ids)
        item: dict[str, Any] = {
            "id": key,
            "type": "article-journal" if paper.venue else "article",
            "title": paper.title,
        }
        if paper.authors:
            item["author"] = [{"literal": author} for author in paper.authors]
        if paper.venue:
            item["container-title"] = paper.venue
        if ids.get("doi"):
            item["DOI"] = ids["doi"]
        date = paper.published
        if date.year:
            parts = [date.year, *([date.month] if date.month else []), *([date.day] if date.month and date.day else [])]
            item["issued"] = {"date-parts": [parts]}
        items.append(item)
    return items


def _ids(external_ids: Iterable[ExternalId]) -> dict[str, str]:
    return {external.scheme: external.value for external in external_ids}


_ESCAPES = {
    "\\": r"\textbackslash{}",
    # Not \{ and \}: BibTeX counts those braces, too, and a title with only one of them would break the whole file.
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _author(name: str) -> str:
    """One author for BibTeX, which would split "Research and Development" in two and fails at a third comma."""
    escaped = _escaped(name)
    return f"{{{escaped}}}" if re.search(r"\sand\s", f" {escaped} ", re.IGNORECASE) or name.count(",") > 2 else escaped


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(text.split()))
