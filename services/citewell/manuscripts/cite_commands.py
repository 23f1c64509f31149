"""The citation commands of LaTeX, natbib, biblatex, apacite and REVTeX, as pylatexenc parses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pylatexenc.latexwalker import LatexGroupNode, LatexWalkerEndOfStream
from pylatexenc.macrospec import MacroSpec, MacroStandardArgsParser, ParsedMacroArgs

_BIBLATEX = ("cite", "parencite", "textcite", "autocite", "footcite", "footcitetext", "smartcite", "supercite")
SINGLE = frozenset(
    f"{name}{rest}"
    for name in ("cite", "Cite")
    for rest in ("", "p", "t", "alp", "alt", "author", "year", "yearpar", "num", "title", "date", "url", "n", "A", "NP")
) | {
    *(name for each in _BIBLATEX for name in (each, each.capitalize())),
    *("fullcite", "footfullcite", "notecite", "pnotecite", "newcite", "shortcite", "onlinecite"),
}
MULTIPLE = frozenset(f"{name}s" for each in _BIBLATEX for name in (each, each.capitalize()))
"""Commands that have notes and keys several times: \\parencites(see)()[3]{a}[4]{b}."""
DESCRIBING = frozenset(
    {
        "citeauthor",
        "Citeauthor",
        "citeyear",
        "citeyearpar",
        "fullcite",
        "footfullcite",
        "citetitle",
        "citedate",
        "citeurl",
    }
)
"""Commands that only describe other citations; they never miss a paper."""

_ANGLES = re.compile(r"\*?\s*<[^<>{}\n]*>")
"""apacite's note before the citation."""
_PARENTHESES = re.compile(r"\*?(?:\s*\([^(){}]{0,300}\)){0,2}")
_COMMENTS = re.compile(r"(?:[ \t]*%[^\n]*\n)*")
_GROUP = re.compile(r"\\.|%[^\n]*|(?P<open>[{\[])|(?P<close>[}\]])", re.DOTALL)


class _One(MacroStandardArgsParser):  # type: ignore[misc]  # pylatexenc has no types
    """Reads \\cite*[note][note]{keys} and \\cite<note>[note]{keys}."""

    def __init__(self) -> None:
        super().__init__("*[[{")

    def parse_args(self, w: Any, pos: int, parsing_state: Any = None) -> tuple[Any, int, int]:
        note = _ANGLES.match(w.s, pos)
        start = note.end() if note else pos
        parsed, _, length = super().parse_args(w, start, parsing_state)
        return parsed, pos, start + length - pos


class _Several(MacroStandardArgsParser):  # type: ignore[misc]
    """Reads \\cites(note)(note)[note][note]{keys}[note][note]{keys}, for as long as groups follow."""

    def parse_args(self, w: Any, pos: int, parsing_state: Any = None) -> tuple[Any, int, int]:
        notes = _PARENTHESES.match(w.s, pos)
        at = end = notes.end() if notes else pos
        read: list[Any] = []
        arguments: list[Any] = []
        while (found := _argument(w, at, parsing_state)) is not None:
            node, start, length = found
            at = start + length
            read.append(node)
            if is_keys(node):
                arguments, end = [*read], at  # notes without a group behind them are text
        return ParsedMacroArgs(argspec="{" * len(arguments), argnlist=arguments), pos, end - pos


def _argument(w: Any, at: int, parsing_state: Any) -> Any:
    comments = _COMMENTS.match(w.s, at)
    at = comments.end() if comments else at
    if (note := w.get_latex_maybe_optional_arg(at, parsing_state=parsing_state)) is not None:
        return note
    try:
        token = w.get_token(at, parsing_state=parsing_state)
    except LatexWalkerEndOfStream:
        return None
    if token.tok != "brace_open" or "\n\n" in token.pre_space:
        return None
    return w.get_latex_braced_group(token.pos, parsing_state=parsing_state)


def is_keys(argument: Any) -> bool:
    """Whether an argument of a command of MULTIPLE holds keys, not a note."""
    return isinstance(argument, LatexGroupNode) and argument.delimiters[0] == "{"


def specifications() -> list[MacroSpec]:
    """What the parser must know of the commands."""
    return [
        *(MacroSpec(name, args_parser=_One()) for name in sorted(SINGLE)),
        *(MacroSpec(name, args_parser=_Several()) for name in sorted(MULTIPLE)),
    ]


def key_groups(command: str) -> Iterator[tuple[int, int]]:
    """Where the groups of keys begin and end in a command of MULTIPLE, braces included."""
    depth, start = 0, -1
    for match in _GROUP.finditer(command):
        if match["open"]:
            if depth == 0:
                start = match.start()
            depth += 1
        elif match["close"]:
            depth -= 1
            if depth == 0 and command[start] == "{":
                yield start, match.end()
