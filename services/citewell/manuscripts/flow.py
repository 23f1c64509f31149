"""A draft as its readers leave it: prose and citations in reading order, and the contexts cut from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from citewell.scholarly.contexts import CONTEXT_RADIUS, OTHER, TARGET, normalise, window

MISSING_KEYS = frozenset({"", "?", "??", "???", "todo", "TODO", "citation", "CITATION"})
"""Keys that writers leave where they still look for a citation."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the draft. Offsets are code points of its text."""

    name: str
    text: str

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Where an offset stands, counted from 1."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


@dataclass(frozen=True, slots=True)
class Prose:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """A place in a file that cites: its keys, or none where the citation is missing."""

    file: str
    offset: int
    length: int
    keys: tuple[str, ...] = ()

    def missing(self, known: frozenset[str] | None) -> bool:
        """Whether something is still to be cited here. Without a bibliography, every real key counts as known."""
        return not self.keys or any(
            key in MISSING_KEYS or (known is not None and key not in known) for key in self.keys
        )


Piece = Prose | Citation


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read. The rest of the draft is answered."""

    file: str
    line: int
    column: int
    message: str


@dataclass(slots=True)
class Flow:
    """What a reader found in a draft."""

    pieces: list[Piece] = field(default_factory=list)
    title: str = ""
    abstract: str = ""
    defined_keys: set[str] = field(default_factory=set)
    """Keys that the draft itself defines (LaTeX's \\bibitem)."""
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """A place where something is still to be cited."""

    citation: Citation
    line: int
    column: int
    context: str
    """With one TARGETCIT; other citations are OTHERCIT."""
    own_keys: tuple[str, ...]
    """Keys at this place that are known: what they name is cited here already."""


def places(flow: Flow, sources: Iterable[Source], bibliography: Iterable[str] | None) -> list[Place]:
    """The places of a draft in reading order. `bibliography`: its keys, None when the draft came without one."""
    by_name = {source.name: source for source in sources}
    keys = None if bibliography is None and not flow.defined_keys else frozenset(bibliography or ()) | flow.defined_keys
    found = []
    for number, piece in enumerate(flow.pieces):
        if isinstance(piece, Citation) and piece.missing(keys):
            line, column = by_name[piece.file].line_and_column(piece.offset)
            own = tuple(key for key in piece.keys if key not in MISSING_KEYS and (keys is None or key in keys))
            found.append(Place(piece, line, column, context_of(flow.pieces, number), own))
    return found


def context_of(pieces: Sequence[Piece], number: int) -> str:
    """The words around a citation, which becomes the TARGETCIT."""
    before = _gather(pieces[at] for at in range(number - 1, -1, -1))
    after = _gather(islice(pieces, number + 1, None))
    text = "".join([*reversed(before), f" {TARGET} ", *after])
    return window(normalise(text))


def _gather(pieces: Iterable[Piece]) -> list[str]:
    """Enough text for one side of a context, piece by piece; a word is never cut by this."""
    texts, size = [], 0
    for piece in pieces:
        # A draft that writes the marker itself would otherwise give a context two of them.
        text = f" {OTHER} " if isinstance(piece, Citation) else piece.text.replace(TARGET, OTHER)
        texts.append(text)
        size += len(text.strip())
        if size > 2 * CONTEXT_RADIUS:
            break
    return texts
