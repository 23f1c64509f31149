"""Reads Markdown drafts with Pandoc's citations; markdown-it separates prose from code."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from citewell.manuscripts.flow import Citation, Flow, NamedBibliography, Piece, Problem, Prose, Source
from citewell.manuscripts.marks import marked_prose

_KEY = r"@(?:\{[^{}\s]*\}|[\w?](?:[\w:.#$%&+?<>~/-]*[\w?])?|\?+)?"
# A bracket whose content names keys ("[see @a, p. 3; @b]", "[@?]", "[@]"), a bare key ("@a says"), code or a comment.
# "^[see @a]" is a note, in which the key is a bare one.
_CITATION = re.compile(
    rf"(?P<code>`+)|(?P<comment><!--)|(?P<bracket>(?<!\^)\[[^\[\]]*?(?<![\w\\])-?{_KEY}[^\[\]]*\])"
    r"|(?<![\w@\\/])(?P<bare>-?@(?:\{[^{}\s]+\}|\w[\w:.#$%&+?<>~/-]*\w))"
)
_KEYS = re.compile(rf"(?<![\w\\])-?({_KEY})")
_CROSS_REFERENCE = re.compile(
    r"@(?:fig|tbl|sec|eq|lst|thm|lem|cor|prp|cnj|def|exm|exr|sol|rem|alg|nte|tip|wrn|imp|cau)[-:]\w", re.IGNORECASE
)
"""How Quarto and pandoc-crossref write references to figures, tables, sections and so on: no citations."""
_LINE_END = re.compile(r"\r\n?|\n")
_NOTE = re.compile(r"^(?:\[\^[^\]\s]+\]:|:\s)", re.MULTILINE)
"""How footnotes and definitions begin. Their further paragraphs are indented like code."""
_NO_PROSE = ("<!", "<?", "<script", "<style", "<pre", "<textarea")
"""How blocks of HTML without prose begin."""
_ATTRIBUTES = re.compile(r"\s*\{[^{}]*\}\s*$")


def read_markdown(source: Source) -> Flow:
    """Title and abstract come from the front matter, else from the first heading and a section "Abstract"."""
    flow = Flow()
    body = _front_matter(source, flow)
    # The lines of markdown-it, which does not split at other separators as str.splitlines does.
    line_starts = [0, *(end.end() for end in _LINE_END.finditer(source.text)), len(source.text)]
    first_line = bisect_right(line_starts, body) - 1
    heading, in_abstract, last_map = "", False, None
    in_note = False
    # Without "reference" a footnote of one word is a paragraph, not the definition of a link.
    for token in MarkdownIt("commonmark").enable("table").disable("reference").parse(source.text[body:]):
        if token.type == "heading_open":
            heading = token.tag
        elif token.type == "heading_close":
            heading = ""
        elif token.type == "inline" and token.map is not None and token.map != last_map:
            last_map = token.map  # every cell of a table has the lines of its whole row
            start, end = (line_starts[min(first_line + line, len(line_starts) - 1)] for line in token.map)
            text = source.text[start:end]
            in_note = _NOTE.search(text) is not None
            if heading:
                told = _ATTRIBUTES.sub("", token.content)
                in_abstract = told.strip(" .:").lower() == "abstract"
                flow.title = flow.title or (_without_citations(told) if heading == "h1" and not in_abstract else "")
            elif in_abstract and not flow.abstract:
                flow.abstract = _without_citations(token.content)
            flow.pieces += [*_pieces(text, source.name, start), Prose("\n\n")]
        elif token.map is not None and _is_prose(token, in_note):
            start, end = (line_starts[min(first_line + line, len(line_starts) - 1)] for line in token.map)
            flow.pieces += [*_pieces(source.text[start:end], source.name, start), Prose("\n\n")]
        elif token.type in ("fence", "code_block", "html_block"):
            flow.pieces.append(Prose(" "))
    return flow


def _is_prose(token: Token, in_note: bool) -> bool:
    """Whether a block that CommonMark does not read holds paragraphs for Pandoc."""
    if token.type == "code_block":
        return in_note
    return token.type == "html_block" and not token.content.lstrip().lower().startswith(_NO_PROSE)


def _without_citations(text: str) -> str:
    kept = "".join(piece.text for piece in _pieces(text, "", 0) if isinstance(piece, Prose))
    return " ".join(kept.split())


def _front_matter(source: Source, flow: Flow) -> int:
    """Reads title and abstract from the YAML block at the top; returns where the text after it begins."""
    match = re.match(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*\r?$\n?", source.text, re.DOTALL | re.MULTILINE)
    if match is None:
        return 0
    try:
        told = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 2, mark.column + 1) if mark else (1, 1)
        flow.problems.append(Problem(source.name, line, column, "the front matter is no valid YAML; it was left out"))
        return match.end()
    if isinstance(told, dict):
        flow.title, flow.abstract = (_without_citations(str(told.get(name) or "")) for name in ("title", "abstract"))
        flow.bibliographies += _bibliographies(source, match[1])
    return match.end()


def _bibliographies(source: Source, front_matter: str) -> Iterator[NamedBibliography]:
    """The .bib files that the front matter names, one or a list."""
    top = yaml.compose(front_matter, yaml.SafeLoader)
    assert isinstance(top, yaml.MappingNode)  # it was loaded as a dictionary
    for key, value in top.value:
        if key.value == "bibliography":
            for named in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(named, yaml.ScalarNode) and PurePosixPath(named.value).suffix.lower() in ("", ".bib"):
                    line, column = named.start_mark.line + 2, named.start_mark.column + 1
                    yield NamedBibliography(source.name, line, column, f"bibliography: {named.value}", named.value)


def named_in_front_matter(text: str) -> list[str]:
    """The names of the .bib files."""
    flow = Flow()
    _front_matter(Source("", text), flow)
    return [each.name for each in flow.bibliographies if each.name]


def keys_in(citation: str) -> tuple[str, ...]:
    """The keys that a citation names; "[@]" has an empty one."""
    return tuple(key.strip("@{}") for key in _KEYS.findall(citation) if not _CROSS_REFERENCE.match(key))


def with_key(citation: str, own_keys: Collection[str], key: str) -> str:
    """The citation with `key` in place of those that are not its own. Its notes stay."""
    items = []
    left = [f"@{key}"]

    def replaced(found: re.Match[str]) -> str:
        if found[1].strip("@{}") in own_keys or _CROSS_REFERENCE.match(found[1]):
            return found.group()
        return found.group().replace(found[1], left.pop()) if left else ""

    brackets = "[]" if citation.startswith("[") else ""
    for item in citation.strip(brackets).split(";"):
        is_chosen = not left
        written = _KEYS.sub(replaced, item)
        if written == item or not is_chosen:  # a further item that is not an own one goes with its notes
            items.append(written)
    return ";".join(items).join(brackets) if brackets else ";".join(items)


def _pieces(text: str, file: str, offset: int) -> list[Piece]:
    """A paragraph's prose and citations. Code between backticks and comments contain none."""
    pieces: list[Piece] = []
    at = end = 0
    while match := _CITATION.search(text, at):
        at = match.end()
        if match["comment"]:
            pieces += marked_prose(text[end : match.start()], file, offset + end)
            closed = text.find("-->", at)
            at = end = closed + len("-->") if closed >= 0 else len(text)
            continue
        if ticks := match["code"]:
            closing = re.compile(rf"(?<!`){ticks}(?!`)").search(text, at)
            if closing:
                pieces += marked_prose(text[end : match.start()], file, offset + end)
                pieces.append(Prose(text[match.end() : closing.start()]))
                at = end = closing.end()
            continue
        keys = keys_in(match.group())
        if not keys:
            continue
        pieces += marked_prose(text[end : match.start()], file, offset + end)
        pieces.append(Citation(file, offset + match.start(), len(match.group()), keys))
        end = at
    return [*pieces, *marked_prose(text[end:], file, offset + end)]
