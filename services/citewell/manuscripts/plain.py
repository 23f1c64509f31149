"""Reads drafts in plain text: an optional title line, an optional abstract, and marks."""

from __future__ import annotations

from citewell.manuscripts.flow import Flow, Source
from citewell.manuscripts.marks import marked_prose

_MAX_TITLE = 200


def read_plain(source: Source) -> Flow:
    """The first line is the title when a blank line follows it; a paragraph after "Abstract" is the abstract."""
    flow = Flow(pieces=marked_prose(source.text, source.name, 0))
    paragraphs = [paragraph.strip() for paragraph in source.text.replace("\r\n", "\n").split("\n\n")]
    first = paragraphs[0]
    if len(paragraphs) > 1 and "\n" not in first and 0 < len(first) <= _MAX_TITLE and not first.endswith("."):
        flow.title = first
    for number, paragraph in enumerate(paragraphs):
        head, _, rest = paragraph.partition("\n")
        if head.strip(" .:").lower() == "abstract":
            flow.abstract = rest.strip() or next(iter(paragraphs[number + 1 :]), "")
            break
        if head.lower().startswith(("abstract:", "abstract.")):
            flow.abstract = paragraph[len("abstract:") :].strip()
            break
    return flow
