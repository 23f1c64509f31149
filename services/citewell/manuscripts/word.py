"""Reads Word drafts (.docx) with python-docx. Offsets refer to the extracted text, one line per paragraph."""

from __future__ import annotations

import io

import docx

from citewell.manuscripts.flow import Flow, Source
from citewell.manuscripts.marks import marked_prose

MAX_PARAGRAPHS = 50_000
"""More than any book has; a small file may hold millions of empty ones."""


def read_word(name: str, content: bytes) -> tuple[Source, Flow]:
    """The text of the document and its parsed form; ValueError if it is not a Word document."""
    try:
        document = docx.Document(io.BytesIO(content))
        if (count := len(document.element.body)) > MAX_PARAGRAPHS:
            raise ValueError(f"{count} paragraphs, at most {MAX_PARAGRAPHS} are read")
        # `paragraph.style` searches all styles for each paragraph: minutes for a long document.
        names = {style.style_id: style.name or "" for style in document.styles}
        paragraphs = [(names.get(paragraph._p.style or "", ""), paragraph.text) for paragraph in document.paragraphs]
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
