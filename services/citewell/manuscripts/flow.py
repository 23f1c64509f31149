"""The parsed form of a draft: prose and citations in reading order, and the contexts cut from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from citewell.scholarly.contexts import CONTEXT_RADIUS, OTHER, TARGET, normalise, window

MISSING_KEYS = frozenset({"", "?", "??", "???"}) | {
    each for key in ("todo", "citation", "cite", "tbd", "xxx") for each in (key, key.upper())
}
"""Keys that writers use as placeholders for a missing citation."""
BIBLIOGRAPHY_HEADINGS = frozenset({"references", "bibliography", "literature", "works cited"})
"""What stands above a list of references, in lower case."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the draft. Offsets are code points of its text."""

    name: str
    text: str

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """The line and column of an offset, counted from 1."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


@dataclass(frozen=True, slots=True)
class Prose:
    """Running text. If it stands in a file exactly so, `file` and `offset` tell where; `offset` is -1 otherwise."""

    text: str
    file: str = ""
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Citation:
    """A citation in a file with its keys, or without keys if the citation is missing."""

    file: str
    offset: int
    length: int
    keys: tuple[str, ...] = ()

    def missing(self, known: frozenset[str] | None) -> bool:
        """Whether a citation is missing here. Without a bibliography, every real key counts as known."""
        return not self.keys or any(
            key in MISSING_KEYS or (known is not None and key not in known) for key in self.keys
        )


Piece = Prose | Citation


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the draft that could not be read. The rest is answered."""

    file: str
    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class NamedBibliography:
    """A .bib file that the draft names."""

    file: str
    line: int
    column: int
    written: str
    """How the draft names it, for messages."""
    name: str


@dataclass(slots=True)
class Flow:
    """What the parser of a format found in a draft."""

    pieces: list[Piece] = field(default_factory=list)
    title: str = ""
    abstract: str = ""
    defined_keys: set[str] = field(default_factory=set)
    """Keys that the draft itself defines (LaTeX's \\bibitem)."""
    bibliographies: list[NamedBibliography] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """The files that were read, if the format has includes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a citation is missing."""

    citation: Citation
    line: int
    column: int
    context: str
    """The words around it, with one TARGETCIT; other citations are OTHERCIT."""
    own_keys: tuple[str, ...]
    """Known keys at this place: their papers are already cited here."""
    need: float | None = None
    """Set if the place is a sentence that looks as if it needs a citation: how likely it does."""
    insert_at: int = -1
    """Offset in the file where that citation would go."""


def places(flow: Flow, sources: Iterable[Source], keys: frozenset[str] | None, most: int) -> tuple[list[Place], int]:
    """The first places of a draft in reading order, and the number of the others.

    `keys`: those that the draft's bibliography has; None if that is not known.
    """
    by_name = {source.name: source for source in sources}
    found: list[Place] = []
    left_out = 0
    seen: set[tuple[str, int]] = set()  # a file that is included twice has its places once
    for number, piece in enumerate(flow.pieces):
        if isinstance(piece, Citation) and piece.missing(keys) and (piece.file, piece.offset) not in seen:
            seen.add((piece.file, piece.offset))
            if len(found) == most:
                left_out += 1
                continue
            line, column = by_name[piece.file].line_and_column(piece.offset)
            own = tuple(key for key in piece.keys if key not in MISSING_KEYS and (keys is None or key in keys))
            found.append(Place(piece, line, column, context_of(flow.pieces, number), own))
    return found, left_out


def context_of(pieces: Sequence[Piece], number: int) -> str:
    """The context of a citation, which is written as TARGETCIT."""
    before = "".join(reversed(_gather(pieces[at] for at in range(number - 1, -1, -1))))
    after = "".join(_gather(islice(pieces, number + 1, None)))
    # A draft may contain the marker itself, also in several pieces; a context must have only one.
    return window(normalise(f"{before.replace(TARGET, OTHER)} {TARGET} {after.replace(TARGET, OTHER)}"))


def _gather(pieces: Iterable[Piece]) -> list[str]:
    """Collects enough text for one side of a context, piece by piece. Words are never cut."""
    texts, size = [], 0
    for piece in pieces:
        text = f" {OTHER} " if isinstance(piece, Citation) else piece.text
        texts.append(text)
        size += len(text.strip())
        if size > 2 * CONTEXT_RADIUS:
            break
    return texts
