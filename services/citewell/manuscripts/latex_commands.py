"""What the reader of LaTeX knows of commands: their arguments, and which write prose, name files or include them."""

from __future__ import annotations

import re
from typing import Any

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec
from pylatexenc.latex2text import get_default_latex_context_db as get_default_text_db
from pylatexenc.latexwalker import LatexCharsNode, get_default_latex_context_db
from pylatexenc.macrospec import EnvironmentSpec, MacroSpec, MacroStandardArgsParser, ParsedMacroArgs

from citewell.manuscripts import cite_commands

NAMING = frozenset({"bibliography", "addbibresource"})
"""Commands that name .bib files."""
INCLUDING = frozenset({"input", "include", "subfile", "InputIfFileExists"})
IMPORTING = frozenset({"import", "subimport", "inputfrom", "subinputfrom", "includefrom", "subincludefrom"})
"""Commands that include a file by its folder and its name."""
HEADINGS = frozenset({"part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph"})
SHORT_AND_LONG = frozenset({"caption", "todo"})
"""Commands with a short text or options before the text."""
_LEFT_OUT = {
    "documentclass": "[{",
    "usepackage": "[{",
    "bibliographystyle": "{",
    "nocite": "{",
    "printbibliography": "[",
    "pagestyle": "{",
    "thispagestyle": "{",
    "pageref": "{",
    "newcommand": "*{[[{",
    "renewcommand": "*{[[{",
    "providecommand": "*{[[{",
    "DeclareRobustCommand": "*{[[{",
    "NewDocumentCommand": "{{{",
    "newenvironment": "*{[[{{",
    "renewenvironment": "*{[[{{",
    "includegraphics": "*[[{",
    "\\": "*[",
}
LEFT_OUT = frozenset(_LEFT_OUT)
"""Commands that write no prose."""
_ENVIRONMENTS = {
    **dict.fromkeys(("longtable", "supertabular", "minipage", "multicols"), "[{"),
    **dict.fromkeys(("tabularx", "tabular*"), "{[{"),
    **dict.fromkeys(("wrapfigure", "wraptable"), "[{[{"),
}
"""Environments whose arguments are measures, no prose."""
_FILE_NAME = re.compile(r"\s*([^\s{}\\%]+)")


class _FileName(MacroStandardArgsParser):  # type: ignore[misc]  # pylatexenc has no types
    """Reads \\input{name} and TeX's \\input name."""

    def __init__(self) -> None:
        super().__init__("{")

    def parse_args(self, w: Any, pos: int, parsing_state: Any = None) -> Any:
        name = _FILE_NAME.match(w.s, pos)
        if name is None:
            return super().parse_args(w, pos, parsing_state)
        state = parsing_state or w.make_parsing_state()
        node = w.make_node(
            LatexCharsNode, parsing_state=state, chars=name[1], pos=name.start(1), len=name.end() - name.start(1)
        )
        return ParsedMacroArgs(argspec="{", argnlist=[node]), pos, name.end() - pos


def parser_db() -> Any:
    """The commands as the parser must know them."""
    db = get_default_latex_context_db()
    files_and_layout = [
        MacroSpec("addbibresource", "[{"),
        MacroSpec("bibitem", "[{"),
        MacroSpec("input", args_parser=_FileName()),
        MacroSpec("InputIfFileExists", "{{{"),
        MacroSpec("href", "{{"),
        *(MacroSpec(name, "{") for name in ("thanks", "url", "nolinkurl")),
        *(MacroSpec(name, "*{{") for name in sorted(IMPORTING)),
        *(MacroSpec(name, "*[{") for name in sorted(HEADINGS)),
        *(MacroSpec(name, "[{") for name in sorted(SHORT_AND_LONG)),
        *(MacroSpec(name, arguments) for name, arguments in _LEFT_OUT.items()),
    ]
    db.add_context_category("citewell", macros=cite_commands.specifications(), prepend=True)
    environments = [EnvironmentSpec(name, arguments) for name, arguments in _ENVIRONMENTS.items()]
    db.add_context_category("citewell-files", macros=files_and_layout, environments=environments, prepend=True)
    return db


def text_maker(citation: str, *, footnotes: bool) -> Any:
    """Makes text of nodes. What is no prose is left out."""
    db = get_default_text_db()
    silent = ["thanks", "url", "nolinkurl", *sorted(LEFT_OUT - {"\\"}), *([] if footnotes else ["footnote"])]
    told = [
        *(MacroTextSpec(name, citation) for name in sorted(cite_commands.SINGLE | cite_commands.MULTIPLE)),
        *(MacroTextSpec(name, "") for name in silent),
        *(MacroTextSpec(name, "%(2)s") for name in ("href", *sorted(SHORT_AND_LONG))),
    ]
    db.add_context_category("citewell", macros=told, prepend=True)
    return LatexNodes2Text(latex_context=db, strict_latex_spaces=False, keep_comments=False)
