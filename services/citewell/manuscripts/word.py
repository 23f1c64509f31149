"""Reads Word drafts (.docx) with python-docx. Offsets refer to the extracted text, one line per paragraph.

Paragraphs are found wherever they stand: in tables, text boxes, content controls, and, behind the text, in notes. Text
that was inserted with tracked changes counts, deleted text does not.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import docx
from docx.document import Document
from docx.oxml.ns import qn
from docx.oxml.parser import parse_xml

from citewell.manuscripts.flow import Flow, Source
from citewell.manuscripts.marks import marked_prose

MAX_PARAGRAPHS = 50_000
"""More than any book has; a small file may hold millions of empty ones."""
_PARAGRAPH, _RUN = qn("w:p"), qn("w:r")
_SKIPPED = frozenset(
    {
        *(qn("w:del"), qn("w:moveFrom")),
        # The same text box once more, for programs that know no newer form.
        "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    }
)
TEXT = "word/document.xml"
NOTES = ("word/footnotes.xml", "word/endnotes.xml")


def read_word(name: str, content: bytes) -> tuple[Source, Flow]:
    """The text of the document and its parsed form; ValueError if it is not a Word document."""
    try:
        document = docx.Document(io.BytesIO(content))
        roots = [document.element.body, *_notes(document)]
        found = list(islice((each for root in roots for each in _paragraphs(root)), MAX_PARAGRAPHS + 1))
        if len(found) > MAX_PARAGRAPHS:
            raise ValueError(f"more than {MAX_PARAGRAPHS} paragraphs")
        # `paragraph.style` of python-docx searches all styles for each paragraph: minutes for a long document.
        names = {style.style_id: style.name or "" for style in document.styles}
        paragraphs = [(names.get(each.style or "", ""), "".join(run.text for run in _runs(each))) for each in found]
    except Exception as error:  # python-docx lets errors of zipfile, zlib, lxml and its own through
        raise ValueError(f"no Word document ({type(error).__name__}: {error})") from None
    source = Source(name, "\n".join(text for _, text in paragraphs))
    flow = Flow(pieces=marked_prose(source.text, name, 0))
    flow.title = next((text.strip() for style, text in paragraphs if style == "Title" and text.strip()), "")
    for number, (style, text) in enumerate(paragraphs):
        if text.strip(" .:").lower() == "abstract":
            flow.abstract = next((later.strip() for _, later in paragraphs[number + 1 :] if later.strip()), "")
            break
        if not flow.title and style == "Heading 1":
            flow.title = text.strip()
    return source, flow


def _notes(document: Document) -> Iterable[Any]:
    parts = {str(each.partname).lstrip("/"): each for each in document.part.package.iter_parts()}
    return [parse_xml(parts[name].blob) for name in NOTES if name in parts]


def _paragraphs(element: Any) -> Iterator[Any]:
    for child in element:
        if child.tag == _PARAGRAPH:
            yield child
        if child.tag not in _SKIPPED:
            yield from _paragraphs(child)


def _runs(element: Any) -> Iterator[Any]:
    """The runs of a paragraph itself: a text box in it has paragraphs of its own."""
    for child in element:
        if child.tag == _RUN:
            yield child
        elif child.tag not in _SKIPPED:
            yield from _runs(child)
