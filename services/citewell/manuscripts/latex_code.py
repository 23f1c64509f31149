"""Blanks out code in LaTeX, which no parser of LaTeX could read."""

from __future__ import annotations

import re

CODE = frozenset({"verbatim", "Verbatim", "lstlisting", "minted", "comment", "tikzpicture", "filecontents"})
"""Environments without prose. LaTeX looks for their end only, so braces inside need not be balanced."""
_IFFALSE = "\\iffalse"
_CODE_BEGINS = re.compile(
    rf"\\begin\{{((?:{'|'.join(sorted(CODE))})\*?)\}}|{re.escape(_IFFALSE)}(?![a-zA-Z])|\\.|%[^\n]*"
)
"""The begin of what has no prose; escaped characters and comments are matched, too, to step over them."""
_CONDITIONAL = re.compile(r"%[^\n]*|\\(?P<name>if(?!f\b|thenelse\b)[a-zA-Z]*|else|fi)(?![a-zA-Z])")
_INLINE = re.compile(
    r"\\(?:url|nolinkurl|path|href)\s*\{(?P<address>[^{}\n]*)\}"
    r"|\\(?:lstinline|mintinline|Verb)\*?(?:\[[^\]\n]{0,300}\])?(?:\{\w{1,30}\})?"
    r"(?P<mark>[^\s\w{}\[\]*\\])(?P<code>[^\n]{0,1000}?)(?P=mark)"
)
"""Addresses and code within lines, in which "%" begins no comment and braces need not be balanced."""


def without_code(text: str) -> str:
    """The text with blanks where code stands. Offsets stay as they are."""
    text = _INLINE.sub(_blanked, text)
    pieces: list[str] = []
    done = 0
    never_end: set[str] = set()
    for match in _CODE_BEGINS.finditer(text):
        name = match[1] or match[0]
        if not (match[1] or name == _IFFALSE) or match.start() < done or name in never_end:
            continue
        end = _end_of_iffalse(text, match.end()) if name == _IFFALSE else text.find(f"\\end{{{name}}}", match.end())
        if end < 0:
            never_end.add(name)
            continue
        pieces += [text[done : match.end()], re.sub(r"[^\n]", " ", text[match.end() : end])]
        done = end
    return "".join([*pieces, text[done:]])


def _end_of_iffalse(text: str, start: int) -> int:
    """Where LaTeX reads on after an \\iffalse; -1 = it never does."""
    depth = 0
    for match in _CONDITIONAL.finditer(text, start):
        name = match["name"]
        if depth == 0 and name in ("else", "fi"):
            return match.start()
        if name is not None:
            depth += {"else": 0, "fi": -1}.get(name, 1)
    return -1


def _blanked(found: re.Match[str]) -> str:
    """The command with blanks in place of its address or its code. A delimiter could be a brace of its own."""
    name = "address" if found["address"] is not None else "code"
    start, end = (at - found.start() for at in found.span(name))
    return found[0][:start] + " " * (end - start) + found[0][end:]
