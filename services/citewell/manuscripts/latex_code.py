"""Blanks out code in LaTeX, which no parser of LaTeX could read."""

from __future__ import annotations

import re

CODE = frozenset({"verbatim", "Verbatim", "lstlisting", "minted", "comment", "tikzpicture", "filecontents"})
"""Environments without prose. LaTeX looks for their end only, so braces inside need not be balanced."""
_CODE_BEGINS = re.compile(
    rf"\\begin\{{(?P<code>(?:{'|'.join(sorted(CODE))})\*?)\}}"
    r"|(?P<off>\\iffalse(?![a-zA-Z])|\\if\s*0\s*1?(?![a-zA-Z0-9]))|\\.|%[^\n]*"
)
"""The begin of what has no prose; escaped characters and comments are matched, too, to step over them."""
_CONDITIONAL = re.compile(r"%[^\n]*|\\(?P<name>if(?!f\b|thenelse\b)[a-zA-Z]*|else|fi)(?![a-zA-Z])")
_INLINE = re.compile(
    r"\\(?:url|nolinkurl|path|href)\s*\{(?P<address>[^{}\n]*)\}"
    r"|\\(?:verb|lstinline|mintinline|Verb)\*?(?:\[[^\]\n]{0,300}\])?(?:\{\w{1,30}\})?"
    r"(?P<mark>[^\s\w{}\[\]*\\])(?P<code>[^\n]{0,1000}?)(?P=mark)"
)
"""Addresses and code within lines, in which "%" begins no comment and braces need not be balanced."""

_MATH = re.compile(r"\\.|%[^\n]*|(?P<math>\$\$?)|(?P<end>\n[ \t\r]*(?=\n))", re.DOTALL)


def without_code(text: str) -> str:
    """The text with blanks where code stands. Offsets stay as they are."""
    text = _INLINE.sub(_blanked, text)
    pieces: list[str] = []
    done = 0
    never_end: set[str] = set()
    for match in _CODE_BEGINS.finditer(text):
        name = match["code"] or match["off"]
        if name is None or match.start() < done or name in never_end:
            continue
        end = _end_of_branch(text, match.end()) if match["off"] else text.find(f"\\end{{{name}}}", match.end())
        if end < 0:
            never_end.add(name)
            continue
        pieces += [text[done : match.end()], re.sub(r"[^\n]", " ", text[match.end() : end])]
        done = end
    return "".join([*pieces, text[done:]])


def _end_of_branch(text: str, start: int) -> int:
    """Where LaTeX reads on after a condition that is false; -1 = it never does."""
    depth = 0
    for match in _CONDITIONAL.finditer(text, start):
        name = match["name"]
        if depth == 0 and name in ("else", "fi"):
            return match.start()
        if name is not None:
            depth += {"else": 0, "fi": -1}.get(name, 1)
    return -1


def _blanked(found: re.Match[str]) -> str:
    """Blanks in place of the code, or of the address within its command."""
    if found["address"] is None:
        return " " * len(found[0])
    start, end = (at - found.start() for at in found.span("address"))
    return found[0][:start] + " " * (end - start) + found[0][end:]


def without_unclosed_formulas(text: str) -> tuple[str, int]:
    """The text with a blank for each "$" that begins a formula without an end in its paragraph, and where the first is.

    -1 = there is none.
    """
    pieces: list[str] = []
    done, first = 0, -1
    begun: tuple[int, int] | None = None
    for match in _MATH.finditer(text + "\n\n"):
        if match["end"] and begun is not None:
            start, end = begun
            pieces += [text[done:start], " " * (end - start)]
            done, first = end, start if first < 0 else first
            begun = None
        elif match["math"]:
            begun = match.span() if begun is None else None
    return "".join([*pieces, text[done:]]), first
