"""Finds the citation that is being typed in a draft, and its context."""

from __future__ import annotations

import re
from dataclasses import dataclass

from citewell.manuscripts.drafts import Format, flow_of
from citewell.manuscripts.flow import Citation, Source, context_of
from citewell.scholarly.contexts import TARGET

# Characters around the cursor that are parsed: several times a context, and parsed in milliseconds.
_AROUND = 4000
_LATEX = re.compile(r"\\[a-zA-Z]*[cC]ite[a-zA-Z]*\*?(?:\[[^\]\n]*\]){0,2}\{([^{}\\\n]*)$")
_MARKDOWN = re.compile(r"(?:\[[^\[\]\n]*?-?@|(?<![\w@])@)([\w:.#$%&+?<>~/-]*)$")
# Keys have no blanks: in "\emph{see \cite{key and others}" the bracket is not the citation's.
_REST_OF_LATEX = re.compile(r"[^\s{}\[\]\\,]*(?:\s*,\s*[^\s{}\[\]\\,]*)*\s*\}")
_REST_OF_MARKDOWN = re.compile(r"[^{}\[\]\\]*?\]")
_KEY = re.compile(r"[^\s,;@{}\[\]]*$")


@dataclass(frozen=True, slots=True)
class TypingPlace:
    """A citation that is being typed."""

    context: str
    """The text around it, with a TARGETCIT."""
    typed: str
    """The part of the key that was typed, directly before the cursor."""
    keys: frozenset[str]
    """Other keys of the same citation."""


def typing_place(text: str, cursor: int, format_: Format) -> TypingPlace | None:
    """The citation at the cursor; None if the cursor is in none. Offsets are code points."""
    line_start = text.rfind("\n", 0, cursor) + 1
    line = text[line_start:cursor]
    latex = format_ is Format.LATEX
    match = (_LATEX if latex else _MARKDOWN).search(line)
    if match is None:
        return None
    typed = _KEY.search(line)
    assert typed is not None  # the pattern also matches the empty end
    start, end = line_start + match.start(), _end(text, cursor, latex=latex)
    inside = text[line_start + match.start() : end]
    found = (
        re.findall(r"@([\w:.#$%&+?<>~/-]+)", inside) if not latex else match[1].split(",") + _rest(text, cursor, end)
    )
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    # Cut between paragraphs, so that the parsed text begins and ends outside of commands.
    before = before[before.find("\n\n") + 1 :] if start > _AROUND else before
    after = after[: after.rfind("\n\n") + 1 or None] if end + _AROUND < len(text) else after
    # A command rather than the word TARGETCIT: places within other commands are known of commands only.
    mark = rf"\cite{{{TARGET}}}" if latex else TARGET
    flow = flow_of(Source("", f"{before} {mark} {after}"), format_)
    at = next(
        (
            number
            for number, piece in enumerate(flow.pieces)
            if isinstance(piece, Citation) and piece.offset == len(before) + 1
        ),
        None,
    )
    if at is None:  # inside a comment, code or a formula
        return None
    keys = frozenset(key.strip() for key in found) - {typed[0], ""}
    return TypingPlace(context_of(flow.pieces, at), typed[0], keys)


def _end(text: str, cursor: int, *, latex: bool) -> int:
    """The position after the citation's closing bracket if that is on the cursor's line, else the cursor."""
    line_end = text.find("\n", cursor)
    rest = text[cursor : line_end if line_end >= 0 else len(text)]
    match = (_REST_OF_LATEX if latex else _REST_OF_MARKDOWN).match(rest)
    return cursor + match.end() if match else cursor


def _rest(text: str, cursor: int, end: int) -> list[str]:
    return text[cursor:end].rstrip("}").split(",")[1:]
