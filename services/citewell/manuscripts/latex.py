"""Reads LaTeX drafts with pylatexenc."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from pylatexenc.latexwalker import (
    LatexCharsNode,
    LatexCommentNode,
    LatexEnvironmentNode,
    LatexGroupNode,
    LatexMacroNode,
    LatexWalker,
    LatexWalkerError,
    LatexWalkerParseError,
)

from citewell.manuscripts import cite_commands
from citewell.manuscripts.flow import Citation, Flow, NamedBibliography, Problem, Prose, Source
from citewell.manuscripts.latex_code import CODE, without_code, without_unclosed_formulas
from citewell.manuscripts.latex_commands import (
    HEADINGS,
    IMPORTING,
    INCLUDING,
    LEFT_OUT,
    NAMING,
    SHORT_AND_LONG,
    parser_db,
    text_maker,
)
from citewell.manuscripts.marks import marked_prose, may_cite
from citewell.manuscripts.sent_files import SentFiles
from citewell.scholarly.contexts import OTHER

_COMMENT = re.compile(r"(?<!\\)%[^\n]*(?:\n\s*)?")
MAX_NESTING = 200
"""Nested groups; the parser's recursion fails at some thousand."""
MAX_FILES = 200
_TOKENS_PER_CHARACTER = 4
"""How often the parser may look at each character, on average; sound drafts need less than 1.5."""
_DEFECTS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What pylatexenc raises on some broken input instead of its own errors."""

# The parser logs errors that it tolerates; they are reported by line and column instead.
logging.getLogger("pylatexenc").setLevel(logging.CRITICAL)

_DB = parser_db()
_to_text = text_maker(OTHER, footnotes=True)
_to_summary = text_maker("", footnotes=False)


def read_latex(main: Source, files: Mapping[str, Source]) -> Flow:
    """Reads the draft in `main` and the files that it includes."""
    reader = _Reader(SentFiles(files, main.name))
    reader.read(main)
    return reader.flow


class _Reader:
    def __init__(self, files: SentFiles) -> None:
        self.flow = Flow()
        self._files = files
        self._open: list[str] = []
        self._read = 0
        self._in_preamble = False

    def read(self, source: Source) -> None:
        """Reads a file; of one that is included before the document begins only what a preamble may tell."""
        self._read += 1
        self.flow.files.add(source.name)
        text, unclosed = without_unclosed_formulas(without_code(source.text))
        source = Source(source.name, text)
        if unclosed >= 0:
            self._problem(source, unclosed, 'the formula that "$" begins here does not end in this paragraph')
        if deep := _too_deep(source.text):
            self._problem(source, deep, f"groups are nested more than {MAX_NESTING} deep; this file was left out")
            return
        self._open.append(source.name)
        try:
            nodes = self._parsed(source)
            document = _environment(nodes, "document")
            if document is not None and not self._in_preamble:
                self._in_preamble = True
                self._preamble(source, nodes)
                self._in_preamble = False
                nodes = document.nodelist
            if self._in_preamble:
                self._preamble(source, nodes)
            else:
                self._nodes(source, nodes)
        except RecursionError:
            self._problem(source, 0, "commands are nested too deeply; the rest of this file was left out")
        except _TooMuchWork:
            self._problem(source, 0, "the braces are so broken that reading would not end; this file was left out")
        self._open.pop()

    def _parsed(self, source: Source) -> list[Any]:
        """The nodes of a file without code.

        Reports the first error of the strict parser; the tolerant parser then reads the file.
        """
        try:
            nodes: list[Any] = _Walker(source.text, tolerant=False).get_latex_nodes()[0]
            return nodes
        except LatexWalkerParseError as error:
            self._problem(source, min(error.pos or 0, len(source.text)), _first_line(error.msg))
        except LatexWalkerError as error:
            self.flow.problems.append(Problem(source.name, 1, 1, _first_line(error)))
        except _DEFECTS:
            pass  # the tolerant parser may do better
        try:
            tolerated: list[Any] = _Walker(source.text, tolerant=True).get_latex_nodes()[0]
        except _DEFECTS:
            self.flow.problems.append(Problem(source.name, 1, 1, "the file cannot be parsed; it was left out"))
            return []
        return tolerated

    def _preamble(self, source: Source, nodes: list[Any]) -> None:
        for node in nodes:
            if not isinstance(node, LatexMacroNode):
                continue
            if node.macroname == "title":
                self.flow.title = _text(_arguments(node)[-1:], _to_summary)
            elif node.macroname in NAMING:
                self._name_bibliography(source, node)
            elif node.macroname in INCLUDING | IMPORTING:
                self._include(source, node)

    def _nodes(self, source: Source, nodes: list[Any]) -> None:
        for node in nodes:
            if node is not None:
                self._node(source, node)

    def _node(self, source: Source, node: Any) -> None:
        if isinstance(node, LatexCommentNode):
            return
        if isinstance(node, LatexMacroNode):
            self._macro(source, node)
        elif isinstance(node, LatexEnvironmentNode):
            self._environment(source, node)
        elif isinstance(node, LatexGroupNode):
            self._nodes(source, node.nodelist)
        elif isinstance(node, LatexCharsNode):
            # Plain characters are equal in source and text, so marks among them can be located.
            text = source.text[node.pos : node.pos + node.len].replace("\N{NO-BREAK SPACE}", " ")
            self.flow.pieces += marked_prose(text, source.name, node.pos)
        else:
            self.flow.pieces.append(Prose(_text([node])))

    def _macro(self, source: Source, node: Any) -> None:
        name = node.macroname
        arguments = _arguments(node)
        if name in cite_commands.SINGLE | cite_commands.MULTIPLE:
            if name not in cite_commands.DESCRIBING:
                self._citation(source, node, arguments)
        elif name in INCLUDING | IMPORTING:
            self._include(source, node)
        elif name == "title":
            self.flow.title = _text(arguments[-1:], _to_summary)
        elif name == "bibitem" and arguments:
            self.flow.defined_keys.add(_raw(source, arguments[-1]).strip())
        elif name in NAMING:
            self._name_bibliography(source, node)
        elif name == "\\":
            self.flow.pieces.append(Prose("\n"))
        elif name in LEFT_OUT:
            return
        elif name in HEADINGS | {"par", "item"}:
            self.flow.pieces.append(Prose("\n\n"))
            self._nodes(source, arguments[-1:])
            self.flow.pieces.append(Prose("\n\n"))
        elif any(isinstance(argument, LatexGroupNode) for argument in arguments) and may_cite(_raw(source, node)):
            if name == "footnote":
                self.flow.pieces.append(Prose(" "))
            self._nodes(source, arguments[-1:] if name in SHORT_AND_LONG else arguments)
        else:
            self.flow.pieces.append(Prose(_text([node])))

    def _citation(self, source: Source, node: Any, arguments: list[Any]) -> None:
        several = node.macroname in cite_commands.MULTIPLE
        groups = [each for each in arguments if cite_commands.is_keys(each)] if several else arguments[-1:]
        keys = ",".join(_COMMENT.sub("", _raw(source, each)) for each in groups)
        if "#" in keys:  # a parameter: this is the definition of a command
            return
        found = tuple(key.strip() for key in keys.split(",")) if keys.strip() else ()
        length = min(node.len, len(source.text) - node.pos)
        self.flow.pieces.append(Citation(source.name, node.pos, length, found))

    def _include(self, source: Source, node: Any) -> None:
        told = [_raw(source, argument).strip() for argument in _arguments(node)]
        name = posixpath.join(*told[-2:]) if node.macroname in IMPORTING and told else "".join(told[:1])
        found = self._files.find(name, ".tex") if name else None
        if found is None:
            self._problem(source, node.pos, f"\\{node.macroname}{{{name}}} names a file that was not sent")
        elif found.name in self._open:
            self._problem(source, node.pos, f"\\{node.macroname}{{{name}}} includes a file into itself")
        elif self._read >= MAX_FILES:
            self._problem(source, node.pos, f"more than {MAX_FILES} files are included; {name!r} was left out")
        else:
            self.read(found)

    def _name_bibliography(self, source: Source, node: Any) -> None:
        named = "".join(_raw(source, argument) for argument in _arguments(node)[-1:])
        for name in filter(None, (each.strip() for each in named.split(","))):
            if "\\" not in name and "#" not in name:  # a name made by a macro is known to LaTeX only
                where = source.line_and_column(node.pos)
                written = f"\\{node.macroname}{{{name}}}"
                self.flow.bibliographies.append(NamedBibliography(source.name, *where, written, name))

    def _environment(self, source: Source, node: Any) -> None:
        if node.environmentname == "abstract":
            self.flow.abstract = _text(node.nodelist, _to_summary).strip()
        self.flow.pieces.append(Prose("\n\n"))
        if node.environmentname.rstrip("*") in CODE:
            return
        if node.environmentname == "thebibliography":
            self.flow.pieces.append(Prose("References\n\n"))
        self._nodes(source, node.nodelist)
        self.flow.pieces.append(Prose("\n\n"))

    def _problem(self, source: Source, offset: int, message: str) -> None:
        self.flow.problems.append(Problem(source.name, *source.line_and_column(offset), message))


class _TooMuchWork(Exception):
    """The parser reads the same text again and again."""


class _Walker(LatexWalker):  # type: ignore[misc]  # pylatexenc has no types
    """The parser with a limit of work: on text with many broken groups its tries grow exponentially."""

    def __init__(self, text: str, *, tolerant: bool) -> None:
        # Without the blank line the parser fails on a draft that ends with \verb.
        super().__init__(text + "\n\n", latex_context=_DB, tolerant_parsing=tolerant)
        self._left = _TOKENS_PER_CHARACTER * len(text) + 1000

    def get_token(self, *args: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchWork
        return super().get_token(*args, **more)


def _first_line(message: object) -> str:
    return next(iter(str(message).splitlines()), "this cannot be read")


def _arguments(node: Any) -> list[Any]:
    """The arguments that are present, in order."""
    given = node.nodeargd.argnlist if node.nodeargd is not None else None
    return [argument for argument in given or () if argument is not None]


def _raw(source: Source, node: Any) -> str:
    """The source of a node, without the braces of a group."""
    text = source.text[node.pos : node.pos + node.len]
    return text[1:-1] if isinstance(node, LatexGroupNode) else text


def _text(nodes: list[Any], maker: Any = _to_text) -> str:
    try:
        text = str(maker.nodelist_to_text(nodes))
    except _DEFECTS:  # for example an accent on nothing: "\\^}"
        return " "
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _environment(nodes: list[Any], name: str) -> Any:
    return next((n for n in nodes if isinstance(n, LatexEnvironmentNode) and n.environmentname == name), None)


def _too_deep(text: str) -> int:
    """The offset where braces or environments are nested too deeply; 0 = nowhere."""
    depth = at = 0
    while at < len(text):
        if text[at] == "\\":
            depth += text.startswith("\\begin{", at) - text.startswith("\\end{", at)
            at += 1  # escaped braces open no group
        elif text[at] in "{[":
            depth += 1
        elif text[at] in "}]":
            depth = max(depth - 1, 0)
        if depth > MAX_NESTING:
            return at
        at += 1
    return 0
