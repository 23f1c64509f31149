"""Semantic Scholar's datasets `papers`, `abstracts` and `citations`: gzipped JSON lines, told apart by their fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citewell.corpora.formats import fields, identifiers
from citewell.corpora.formats.documents import Abstract, Citation, Document, Format, Part
from citewell.corpora.formats.identifiers import Name
from citewell.corpora.readers import Malformed, OnReject, Reject, json_lines


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    for line, record in json_lines(path, on_reject):
        try:
            yield _part(record, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


def names_of(record: dict[str, Any]) -> tuple[Name, ...]:
    """All names of a record of Semantic Scholar; its own is the first."""
    ids = {key.lower(): value for key, value in fields.mapping(record, "externalids").items() if value}
    return (
        *identifiers.numbered("s2", fields.required(record, "corpusid")),
        *identifiers.doi(str(ids.get("doi", ""))),
        *identifiers.arxiv(str(ids.get("arxiv", ""))),
        *identifiers.plain("acl", ids.get("acl")),
        *identifiers.numbered("pmid", ids.get("pubmed")),
        *identifiers.numbered("pmc", ids.get("pubmedcentral")),
    )


def _part(record: Any, line: int) -> Part:
    if isinstance(record, dict) and "citingcorpusid" in record:
        return _citation(record)
    if isinstance(record, dict) and "title" not in record and "abstract" in record:
        return Abstract(Name("s2", fields.required(record, "corpusid")), fields.text(record, "abstract"))
    title = fields.required(record, "title")
    return Document(
        line,
        names_of(record),
        title,
        authors=tuple(name for author in fields.entries(record, "authors") if (name := fields.text(author, "name"))),
        venue=fields.text(record, "venue") or fields.text(fields.mapping(record, "journal"), "name"),
        published=fields.date(record.get("publicationdate"), record.get("year")),
        revision=fields.revision_of(record.get("updated")),
    )


def _citation(record: dict[str, Any]) -> Citation:
    contexts = record.get("contexts")
    return Citation(
        Name("s2", fields.required(record, "citingcorpusid")),
        Name("s2", fields.required(record, "citedcorpusid")),
        tuple(text for text in contexts if isinstance(text, str)) if isinstance(contexts, list) else (),
    )


FORMAT = Format("s2ag", "Semantic Scholar's papers, abstracts and citations", ("*.jsonl", "*.jsonl.gz", "*.gz"), read)
