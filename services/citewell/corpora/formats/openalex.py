"""OpenAlex works: gzipped JSON lines with metadata, identifiers and references; abstracts as lists of words' places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citewell.corpora.formats import fields, identifiers
from citewell.corpora.formats.documents import Document, Format, Part, Reference
from citewell.corpora.readers import Malformed, OnReject, Reject, json_lines

_LONGEST = 20_000
"""Words of an abstract. A word's place may be any number, and must not decide how much memory is taken."""


def read(path: Path, on_reject: OnReject) -> Iterator[Part]:
    for line, record in json_lines(path, on_reject):
        try:
            yield _document(record, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


def _document(record: Any, line: int) -> Document:
    names = identifiers.openalex(fields.required(record, "id"))
    if not names:
        raise Malformed(f"id is {record['id']!r}, which is no work of OpenAlex")
    title = fields.without_markup(fields.text(record, "title", "display_name"))
    if not title:
        raise Malformed("title is missing")
    ids = fields.mapping(record, "ids")
    cited = record.get("referenced_works")
    listed = (
        [name for each in cited if isinstance(each, str) for name in identifiers.openalex(each)]
        if isinstance(cited, list)
        else []
    )
    place = fields.mapping(record, "primary_location")
    return Document(
        line,
        (
            *names,
            *identifiers.doi(fields.text(record, "doi") or fields.text(ids, "doi")),
            *identifiers.numbered("pmid", ids.get("pmid")),
            *identifiers.numbered("pmc", ids.get("pmcid")),
        ),
        title,
        abstract=_abstract(fields.mapping(record, "abstract_inverted_index")),
        authors=tuple(
            name
            for each in fields.entries(record, "authorships")
            if (name := fields.text(fields.mapping(each, "author"), "display_name"))
        ),
        venue=fields.text(fields.mapping(place, "source"), "display_name"),
        published=fields.date(record.get("publication_date"), record.get("publication_year")),
        revision=fields.revision_of(record.get("updated_date")),
        references={str(name): Reference((name,)) for name in listed},
        retracted=record.get("is_retracted") is True,
    )


def _abstract(places: dict[str, Any]) -> str:
    """The text of {word: [its places]}."""
    words = [
        (place, word)
        for word, found in places.items()
        if isinstance(found, list)
        for place in found
        if isinstance(place, int)
    ]
    return fields.without_markup(" ".join(word for _, word in sorted(words)[:_LONGEST]))


FORMAT = Format("openalex", "OpenAlex works", ("*.jsonl", "*.jsonl.gz", "*.gz"), read)
