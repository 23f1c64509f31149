"""unarXive 2022: arXiv papers as JSON lines; paragraphs have citations as spans that name bibliography entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citewell.corpora.formats import fields, identifiers
from citewell.corpora.formats.documents import Document, Format, Mark, Paragraph, Part, Reference
from citewell.corpora.readers import Malformed, OnReject, Reject, json_lines
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    for line, record in json_lines(path, on_reject):
        try:
            yield _document(record, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


def _document(record: Any, line: int) -> Document:
    names = identifiers.arxiv(fields.required(record, "paper_id"))
    if not names:
        raise Malformed(f"paper_id is {record['paper_id']!r}, which is no arXiv id")
    about = fields.mapping(record, "metadata")
    title = fields.text(about, "title")
    if not title:
        raise Malformed("metadata.title is missing")
    versions = fields.entries(about, "versions")
    abstract = fields.mapping(record, "abstract")
    return Document(
        line,
        (*names, *identifiers.doi(fields.text(about, "doi"))),
        title,
        abstract=fields.text(abstract, "text") or fields.text(about, "abstract"),
        authors=tuple(_authors(about)),
        venue=fields.text(about, "journal-ref"),
        published=_day(fields.text(versions[0], "created")) if versions else fields.date(about.get("update_date")),
        revision=len(versions),
        references={key: _reference(entry) for key, entry in fields.mapping(record, "bib_entries").items()},
        paragraphs=tuple(_paragraphs(record)),
    )


def _authors(about: dict[str, Any]) -> Iterator[str]:
    """Names as "First Last"; metadata lists [last, first, suffix, …]."""
    listed = about.get("authors_parsed")
    for parts in listed if isinstance(listed, list) else ():
        if isinstance(parts, list) and (written := [part.strip() for part in parts[:2] if isinstance(part, str)]):
            yield " ".join(part for part in reversed(written) if part)


def _day(created: str) -> PartialDate:
    """The day of "Mon, 2 Apr 2007 19:18:42 GMT"."""
    parts = created.replace(",", " ").split()
    try:
        return PartialDate(int(parts[3]), _MONTHS.index(parts[2][:3].lower()) + 1, int(parts[1]))
    except (IndexError, ValueError):
        return UNKNOWN_DATE


def _reference(entry: Any) -> Reference:
    if not isinstance(entry, dict):
        return Reference()
    ids = fields.mapping(entry, "ids")
    linked = [fields.text(each, "id") for each in fields.entries(entry, "contained_arXiv_ids")]
    names = (
        *identifiers.doi(fields.text(ids, "doi")),
        *identifiers.arxiv(fields.text(ids, "arxiv_id") or next(iter(linked), "")),
        *identifiers.openalex(fields.text(ids, "open_alex_id")),
        *identifiers.numbered("pmid", ids.get("pubmed_id")),
    )
    return Reference(names or identifiers.doi(fields.text(entry, "bib_entry_raw")))


def _paragraphs(record: dict[str, Any]) -> Iterator[Paragraph]:
    for part in fields.entries(record, "body_text"):
        text = part.get("text")
        spans = fields.entries(part, "cite_spans")
        if isinstance(text, str) and spans:
            marks = [_mark(span, len(text)) for span in spans]
            if whole := tuple(mark for mark in marks if mark):
                yield Paragraph(text, whole, fields.text(part, "section"))


def _mark(span: dict[str, Any], length: int) -> Mark | None:
    start, end, key = span.get("start"), span.get("end"), fields.text(span, "ref_id")
    if key and isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length:
        return Mark(start, end, (key,))
    return None


FORMAT = Format("unarxive", "unarXive 2022", ("*.jsonl", "*.jsonl.gz"), read)
