"""Finds the citation that is being typed in a draft, and its context."""

from __future__ import annotations

import re
from dataclasses import dataclass

from citewell.manuscripts.cite_commands import key_groups
from citewell.manuscripts.drafts import Format, flow_of
from citewell.manuscripts.flow import Citation, Source, context_of
from citewell.scholarly.contexts import TARGET

# Characters around the cursor that are parsed: several times a context, and parsed in milliseconds.
_AROUND = 4000
# The most characters of a citation before the cursor, and behind it.
_LONGEST = 2000
# Keys have no blanks: in "\emph{see \cite{key and others" the bracket is not the citation's. What was begun on the
# cursor's line may have some, because some write what they look for.
_KEYS = r"(?:[^{}\\\n%]*|(?:\s*(?:[^{}\\\s,]+\s*)?,)*\s*[^{}\\\s,%]*)$"
_LATEX = re.compile(
    r"\\(?:[a-zA-Z]*[cC]ites\*?(?:\s*\([^()]*\)){0,2}(?:\s*(?:\[[^\[\]]*\]|\{[^{}\\]*\}))*"
    r"|[a-zA-Z]*[cC]ite[a-zA-Z]*\*?(?:\s*<[^<>]*>)?(?:\s*\[[^\[\]]*\]){0,2})\s*\{" + _KEYS
)
_REST_OF_LATEX = re.compile(r"[^\s{}\[\]\\,]*(?:\s*,(?:\s*[^\s{}\[\]\\,]+)?)*\s*\}")
_FURTHER_GROUPS = re.compile(r"(?:(?:\s*\[[^\[\]]*\])*\s*\{[^{}\\]*\})*")
_SEVERAL = re.compile(r"\\[a-zA-Z]*[cC]ites\b")
_MARKDOWN = re.compile(r"(?:\[[^\[\]]*?-?@|(?<![\w@])@)[\w:.#$%&+?<>~/-]*$")
_REST_OF_MARKDOWN = re.compile(r"[^{}\[\]\\]*?\]")
_MARKDOWN_KEY = re.compile(r"@([\w:.#$%&+?<>~/-]*\w)")
_TAIL_OF_LATEX = re.compile(r"[^\s,{}\[\]\\]*")
_TAIL_OF_MARKDOWN = re.compile(r"(?:[\w:.#$%&+?<>~/-]*\w)?")
_KEY = re.compile(r"[^\s,;@{}\[\]]*$")
_COMMENT = re.compile(r"(?<!\\)%[^\n]*(?=\n)")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class TypingPlace:
    """A citation that is being typed."""

    context: str
    """The text around it, with a TARGETCIT."""
    typed: str
    """The part of the key that was typed, directly before the cursor."""
    tail: str
    """The rest of that key, directly behind the cursor. A completion takes its place as well."""
    keys: frozenset[str]
    """Other keys of the same citation."""


def typing_place(text: str, cursor: int, format_: Format) -> TypingPlace | None:
    """The citation at the cursor; None if the cursor is in none. Offsets are code points."""
    latex = format_ is Format.LATEX
    told = _before(text, cursor, latex=latex)
    match = (_LATEX if latex else _MARKDOWN).search(told)
    typed = _KEY.search(told)
    if match is None or typed is None:
        return None
    rest, tail = _latex_rest(text, cursor, match[0]) if latex else _markdown_rest(text, cursor)
    tail = tail if typed[0] else ""
    start, end = cursor - len(match[0]), cursor + len(rest)
    inside = match[0] + rest
    found = _latex_keys(inside if rest else inside + "}") if latex else _MARKDOWN_KEY.findall(inside)
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
    keys = frozenset(found) - {typed[0] + tail, typed[0], ""}
    return TypingPlace(context_of(flow.pieces, at), typed[0], tail, keys)


def _before(text: str, cursor: int, *, latex: bool) -> str:
    """The text of the paragraph before the cursor. In LaTeX blanks stand for the comments of the lines above."""
    told = _BLANK_LINE.split(text[max(0, cursor - _LONGEST) : cursor])[-1]
    return _COMMENT.sub(_blank, told) if latex else told


def _latex_rest(text: str, cursor: int, begun: str) -> tuple[str, str]:
    """What belongs to the citation behind the cursor, and how much of it to the key; nothing if it is not closed."""
    told = _COMMENT.sub(_blank, _after(text, cursor))
    closed = _REST_OF_LATEX.match(told)
    tail = _TAIL_OF_LATEX.match(told)
    if closed is None or tail is None:
        return "", ""
    further = _FURTHER_GROUPS.match(told, closed.end()) if _SEVERAL.match(begun) else None
    return told[: further.end() if further else closed.end()], tail[0]


def _markdown_rest(text: str, cursor: int) -> tuple[str, str]:
    told = _after(text, cursor)
    tail = _TAIL_OF_MARKDOWN.match(told)
    closed = _REST_OF_MARKDOWN.match(told) or tail
    return (closed[0], tail[0]) if closed and tail else ("", "")


def _after(text: str, cursor: int) -> str:
    return _BLANK_LINE.split(text[cursor : cursor + _LONGEST])[0]


def _latex_keys(command: str) -> list[str]:
    groups = (command[start + 1 : end - 1] for start, end in key_groups(command))
    return [key.strip() for group in groups for key in group.split(",")]


def _blank(comment: re.Match[str]) -> str:
    return " " * len(comment[0])
