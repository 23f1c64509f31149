"""Finds the sentences of a draft that cite nothing and look as if they need a citation."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from citewell.manuscripts.flow import BIBLIOGRAPHY_HEADINGS, Citation, Flow, Piece, Place, Prose, Source
from citewell.manuscripts.need import NeedModel
from citewell.scholarly.contexts import CONTEXT_RADIUS, OTHER, TARGET, normalise, window
from citewell.scholarly.spans import Span, sentences

_PARAGRAPH_END = re.compile(r"\n[ \t\r]*\n\s*")
_MARKER = re.compile(rf"\b(?:{TARGET}|{OTHER})\b")
_LEADING = re.compile(r"[\s>*+#|-]*")
"""White space, and Markdown's marks of quotes and items of lists."""
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s*$")


def suggested_places(flow: Flow, sources: Iterable[Source], model: NeedModel, most: int) -> tuple[list[Place], int]:
    """The sentences with the highest scores of at least the model's threshold, and the number of the others.

    Left out: what cites already, the abstract, and everything from the bibliography on. A sentence whose first letter
    or full stop is not written in the file exactly so (the output of a macro) is left out too: it has no place there.
    """
    by_name = {source.name: source for source in sources}
    text = _Text(flow.pieces)
    abstract = normalise(flow.abstract)
    found: dict[tuple[str, int], tuple[float, int, int]] = {}  # a file that is included twice has its sentences once
    for sentence in _sentences(text.text):
        said = sentence.of(text.text)
        if _MARKER.search(said) or normalise(said) in abstract:
            continue
        end = _SENTENCE_END.search(said)
        if end is None or not said[:1].isupper():
            continue
        stop = sentence.offset + end.start()
        first, last = text.place(sentence.offset), text.place(stop)
        if first is None or last is None or first[0] != last[0] or first[1] >= last[1]:
            continue
        if (need := model.score(said)) >= model.threshold:
            found.setdefault(first, (need, stop, last[1]))
    best = sorted(found.items(), key=lambda each: (-each[1][0], each[1][1]))
    return [
        Place(
            Citation(file, start, insert_at + 1 - start),
            *by_name[file].line_and_column(start),
            context=text.context(stop),
            own_keys=(),
            need=need,
            insert_at=insert_at,
        )
        for (file, start), (need, stop, insert_at) in best[:most]
    ], max(0, len(best) - most)


def _sentences(text: str) -> Iterator[Span]:
    start = 0
    for end in [*_PARAGRAPH_END.finditer(text), None]:
        paragraph = text[start : end.start() if end else len(text)]
        if paragraph.strip(" \t\r\n#*.:0123456789").lower() in BIBLIOGRAPHY_HEADINGS:
            return
        for sentence in sentences(paragraph):
            said = sentence.of(paragraph).rstrip()
            first = _LEADING.match(said)
            assert first is not None  # it may be empty
            if first.end() < len(said):
                yield Span(start + sentence.offset + first.end(), len(said) - first.end())
        start = end.end() if end else len(text)


@dataclass(frozen=True, slots=True)
class _Literal:
    """Where a piece of the text stands in its file."""

    start: int
    length: int
    file: str
    offset: int


class _Text:
    """The text of a flow with each citation as OTHERCIT, and where its letters stand in the files."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        texts: list[str] = []
        self._literals: list[_Literal] = []
        size = 0
        for piece in pieces:
            text = f" {OTHER} " if isinstance(piece, Citation) else piece.text
            if isinstance(piece, Prose) and piece.offset >= 0:
                self._literals.append(_Literal(size, len(text), piece.file, piece.offset))
            texts.append(text)
            size += len(text)
        self.text = "".join(texts)
        self._starts = [literal.start for literal in self._literals]

    def place(self, at: int) -> tuple[str, int] | None:
        """File and offset of a letter; None if it stands in no file exactly so."""
        number = bisect_right(self._starts, at) - 1
        if number < 0:
            return None
        literal = self._literals[number]
        inside = at - literal.start
        return (literal.file, literal.offset + inside) if inside < literal.length else None

    def context(self, at: int) -> str:
        """The context of a citation that would stand here."""
        # A draft may contain the marker itself; a context must have only one.
        before = self.text[max(0, at - 3 * CONTEXT_RADIUS) : at].replace(TARGET, OTHER)
        after = self.text[at : at + 3 * CONTEXT_RADIUS].replace(TARGET, OTHER)
        return window(normalise(f"{before} {TARGET}{after}"))
