"""S2ORC, Semantic Scholar's full texts: one text a paper, with spans by character offsets, in both of its versions.

Version 1 has `content.text` and `content.annotations` with `bibref` and `bibentry`; version 2 has `body` and
`bibliography`, each with a text, and `bib_ref` and `bib_entry`. Spans are lists written as JSON inside strings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citewell.corpora.formats import fields, identifiers
from citewell.corpora.formats.documents import Document, Format, Mark, Paragraph, Part, Reference
from citewell.corpora.formats.s2ag import names_of
from citewell.corpora.readers import Malformed, OnReject, Reject, json_lines


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    for line, record in json_lines(path, on_reject):
        try:
            yield _document(record, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


class _Spans:
    """A text and what is annotated in it."""

    def __init__(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        self.text: str = text if isinstance(text, str) else ""
        self._annotations = fields.mapping(part, "annotations")

    def of(self, *names: str) -> list[tuple[int, int, dict[str, Any]]]:
        """(start, end, attributes) of every span of the first kind that is there, in the order of the text."""
        for name in names:
            if spans := fields.entries(self._annotations, name):
                whole = [
                    (_offset(span, "start"), _offset(span, "end"), fields.mapping(span, "attributes")) for span in spans
                ]
                return sorted((span for span in whole if 0 <= span[0] < span[1] <= len(self.text)), key=lambda s: s[:2])
        return []

    def first(self, *names: str) -> str:
        return next((self.text[start:end].strip() for start, end, _ in self.of(*names)), "")


def _offset(span: dict[str, Any], name: str) -> int:
    value = span.get(name)
    return int(value) if isinstance(value, (int, str)) and str(value).isdigit() else -1


def _document(record: Any, line: int) -> Document:
    fields.required(record, "corpusid")
    body = _Spans(fields.mapping(record, "body") or fields.mapping(record, "content"))
    listed = _Spans(fields.mapping(record, "bibliography") or fields.mapping(record, "content"))
    title = fields.text(record, "title") or body.first("title")
    if not title:
        raise Malformed("title is missing")
    authors = tuple(name for author in fields.entries(record, "authors") if (name := fields.text(author, "name")))
    return Document(
        line,
        names_of(record),
        title,
        abstract=fields.text(record, "abstract") or body.first("abstract"),
        authors=authors or tuple(body.text[start:end].strip() for start, end, _ in body.of("author")),
        venue=fields.text(record, "venue") or body.first("venue"),
        published=fields.date(record.get("publicationdate"), record.get("year")),
        revision=fields.revision_of(record.get("updated")),
        references=_references(listed, body),
        paragraphs=tuple(_paragraphs(body)),
    )


def _references(listed: _Spans, body: _Spans) -> dict[str, Reference]:
    """The bibliography. Where an entry has no match, the citation itself may have one."""
    titles = listed.of("bib_title", "bibtitle")
    references = {}
    for start, end, attributes in listed.of("bib_entry", "bibentry"):
        if key := fields.text(attributes, "id"):
            title = next((listed.text[a:b] for a, b, _ in titles if start <= a and b <= end), "")
            names = identifiers.numbered("s2", attributes.get("matched_paper_id"))
            references[key] = Reference(names or identifiers.doi(listed.text[start:end]), title)
    for _, _, attributes in body.of("bib_ref", "bibref"):
        key, names = fields.text(attributes, "ref_id"), identifiers.numbered("s2", attributes.get("matched_paper_id"))
        if key and names and not references.get(key, Reference()).names:
            references[key] = Reference(names)
    return references


def _paragraphs(body: _Spans) -> Iterator[Paragraph]:
    headers = body.of("section_header", "sectionheader")
    starts = [start for start, _, _ in headers]
    marks = [(start, end, fields.text(told, "ref_id")) for start, end, told in body.of("bib_ref", "bibref")]
    for start, end, _ in body.of("paragraph"):
        inside = tuple(Mark(a - start, b - start, (key,)) for a, b, key in marks if key and start <= a and b <= end)
        if inside:
            above = bisect_right(starts, start) - 1
            section = body.text[headers[above][0] : headers[above][1]].strip() if above >= 0 else ""
            yield Paragraph(body.text[start:end], inside, section)


FORMAT = Format("s2orc", "S2ORC, Semantic Scholar's full texts", ("*.jsonl", "*.jsonl.gz", "*.gz"), read)
