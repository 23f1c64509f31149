"""Marks that stand for a missing citation in any kind of prose: [?], [CITATION], [@?], TARGETCIT."""

from __future__ import annotations

import re

from citewell.manuscripts.flow import Citation, Piece, Prose
from citewell.scholarly.contexts import OTHER, TARGET

_MARK = re.compile(rf"\[\s*(?:\?+|CITATION(?:\s+NEEDED)?|@\?+)\s*\]|\b{TARGET}\b|\b{OTHER}\b", re.IGNORECASE)


def may_cite(text: str) -> bool:
    """Whether a command's source may hold a citation or a mark."""
    return "cite" in text.lower() or _MARK.search(text) is not None


def marked_prose(text: str, file: str, offset: int) -> list[Piece]:
    """Splits text into prose and citations at the marks. `offset` is the position of the text in its file."""
    pieces: list[Piece] = []
    end = 0
    for mark in _MARK.finditer(text):
        pieces.append(Prose(text[end : mark.start()], file, offset + end))
        other = mark.group().upper() == OTHER
        pieces.append(Citation(file, offset + mark.start(), len(mark.group()), (OTHER,) if other else ()))
        end = mark.end()
    pieces.append(Prose(text[end:], file, offset + end))
    return [piece for piece in pieces if not isinstance(piece, Prose) or piece.text]
