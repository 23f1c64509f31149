"""Scholarly XML: files within limits, elements without their namespaces, and paragraphs with the citations in them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

from citewell.corpora.formats.documents import Mark
from citewell.corpora.readers import Malformed, open_plain

MOST_BYTES = 64 << 20
_DEEPEST = 200
_LINES = """
    ab break caption def disp-formula disp-quote div fig head item label list list-item p sec table-wrap td th title tr
"""
_BLOCKS = frozenset(_LINES.split())
"""Elements that are printed on lines of their own, though there is often no white space between them in the file."""

Keys = Callable[[ElementTree.Element], tuple[str, ...]]


def parse(path: Path) -> ElementTree.Element:
    """The root of an XML file of at most 64 MB, with local names as tags. One that defines entities is refused."""
    with open_plain(path) as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Malformed(f"more than {MOST_BYTES >> 20} MB")
    if b"<!ENTITY" in content:
        raise Malformed("defines entities of its own, which are not expanded")
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise Malformed(f"not XML: {error}") from None
    _drop_namespaces(root)
    return root


def _drop_namespaces(root: ElementTree.Element) -> None:
    level = [root]
    for _ in range(_DEEPEST):
        for element in level:
            if isinstance(element.tag, str):
                element.tag = element.tag.rsplit("}", 1)[-1]
            for name in [name for name in element.attrib if name.startswith("{")]:
                element.attrib[name.rsplit("}", 1)[-1]] = element.attrib.pop(name)
        level = [child for element in level for child in element]
        if not level:
            return
    raise Malformed(f"elements within elements, more than {_DEEPEST} deep")


def words(element: ElementTree.Element | None) -> str:
    """All text of an element, with single blanks."""
    return " ".join(_text(element).split()) if element is not None else ""


def _text(element: ElementTree.Element) -> str:
    return "".join(text for text, _ in _pieces(element, lambda _: ()))


def marked(paragraph: ElementTree.Element, keys: Keys) -> tuple[str, tuple[Mark, ...]]:
    """The text of a paragraph and where it cites; `keys` tells which bibliography entries an element points to."""
    pieces: list[str] = []
    marks: list[Mark] = []
    size = 0
    for text, cited in _pieces(paragraph, keys):
        if cited and text.strip():
            inner = text.strip()
            start = size + text.index(inner)
            marks.append(Mark(start, start + len(inner), cited))
        pieces.append(text)
        size += len(text)
    return "".join(pieces), tuple(marks)


def _pieces(element: ElementTree.Element, keys: Keys) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield _blanks(element.text), ()
    for child in element:
        edge = " " if child.tag in _BLOCKS else ""
        yield edge, ()
        if cited := keys(child):
            yield _text(child), cited
        else:
            yield from _pieces(child, keys)
        yield edge + _blanks(child.tail), ()


def _blanks(text: str | None) -> str:
    return (text or "").replace("\n", " ").replace("\t", " ")
