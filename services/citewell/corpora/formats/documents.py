"""What the readers of foreign formats yield: documents and pieces of them, with references by any identifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from citewell.corpora.formats.identifiers import Name
from citewell.corpora.readers import OnReject
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate


@dataclass(frozen=True, slots=True)
class Reference:
    """An entry of a bibliography: what the source knows of the cited paper."""

    names: tuple[Name, ...] = ()
    title: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a paragraph that cites entries of the bibliography, by their keys."""

    start: int
    end: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph with at least one citation, as printed."""

    text: str
    marks: tuple[Mark, ...]
    section: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A paper as its source tells of it. The first name is the source's own id."""

    line: int
    names: tuple[Name, ...]
    title: str
    abstract: str = ""
    authors: tuple[str, ...] = ()
    venue: str = ""
    published: PartialDate = UNKNOWN_DATE
    revision: int = 0
    """As the source numbers or dates it; 0 = the time at which the file was written."""
    references: dict[str, Reference] = field(default_factory=dict)
    """The bibliography by the keys that marks use."""
    paragraphs: tuple[Paragraph, ...] = ()
    retracted: bool = False


@dataclass(frozen=True, slots=True)
class Abstract:
    """The abstract of a paper that another file describes."""

    paper: Name
    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """One paper cites another, with the sentences around it where they are known; which word cites is not known."""

    citing: Name
    cited: Name
    contexts: tuple[str, ...] = ()


Part = Document | Abstract | Citation


@dataclass(frozen=True, slots=True)
class Format:
    """A format of corpora that `citewell load` reads."""

    name: str
    what: str
    """What the format is, for messages."""
    patterns: tuple[str, ...]
    """Which files of a folder belong to it, at any depth."""
    read: Callable[[Path, OnReject], Iterator[Part]]
    """Every usable part of a file; unusable ones are rejected with line and reason."""

    def files(self, folder: Path) -> list[Path]:
        """The files of a folder, in a fixed order."""
        return sorted({path for pattern in self.patterns for path in folder.rglob(pattern) if path.is_file()})
