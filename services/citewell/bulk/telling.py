"""What one paper of the input adds to the ledger: its publication, its texts and its citations. Pure Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from citewell.profiler.ledger.encoding import Encoder, prepared
from citewell.profiler.ledger.facts import ContextText, PaperText, Text, read_facts
from citewell.profiler.ledger.rules import contributions
from citewell.profiler.ledger.sums import VECTOR
from citewell.profiler.ledger.text_terms import COUNT, TERM, terms_of
from citewell.profiler.profiles import to_fixed
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.publications import InvalidPublication, Publication, validate
from citewell.types.messages import publication_to_message

Row = dict[str, Any]


def tell(paper: Mapping[str, Any]) -> Row:
    """The rows of a paper; only its id and `reject`, the reason, if it cannot be used.

    `paper` has id, title, abstract, venue, authors, published, contexts (cited_id, text, group_size), citations, and
    repeat: which of the rows with this id it is, from 1. Only the first is used.
    """
    if (paper.get("repeat") or 1) > 1:
        title = paper["title"] or ""
        reject = f"id {paper['id']!r} is given by more than one row; this one, with title {title!r}, is not used"
        return {"id": paper["id"], "reject": reject}
    try:
        publication = _publication(paper)
        validate(publication)
    except (InvalidPublication, ValueError) as error:
        return {"id": paper["id"], "reject": str(error)}
    facts, texts = read_facts(publication)
    cited = contributions(facts, {source: source for source in facts.contexts})
    return {
        "id": publication.paper_id,
        "reject": "",
        "revision": publication.revision,
        "content_hash": publication.content_hash(),
        "text_key": facts.text,
        "publication": publication_to_message(publication).SerializeToString(),
        "texts": [_text_row(key, text) for key, text in texts.items()],
        "edges": [
            {
                "cited": name,
                "year": one.year,
                "day": facts.published.last_day(),
                "contexts": list(one.contexts),
            }
            for name, one in cited.items()
        ],
    }


def _publication(paper: Mapping[str, Any]) -> Publication:
    published = str(paper.get("published") or "")
    return Publication(
        paper_id=paper["id"],
        revision=1,
        title=paper["title"] or "",
        abstract=paper.get("abstract") or "",
        authors=tuple(name for name in paper.get("authors") or () if name),
        venue=paper.get("venue") or "",
        published=PartialDate.parse(published) if published else UNKNOWN_DATE,
        reference_ids=tuple(sorted(set(paper.get("citations") or ()))),
        masked_contexts=tuple(
            MaskedContext(each["text"] or "", each["cited_id"], each.get("group_size") or 0)
            for each in paper.get("contexts") or ()
        ),
    )


def _text_row(key: bytes, text: Text) -> Row:
    if isinstance(text, PaperText):
        return {"key": key, "title": text.title, "body": text.abstract}
    return {"key": key, "title": None, "body": text.text}


def encoded(rows: Sequence[Mapping[str, Any]], encoder: Encoder) -> list[Row]:
    """The vector in fixed point and the terms of each text, as the ledger stores them."""
    texts = [ContextText(row["body"]) if row["title"] is None else PaperText(row["title"], row["body"]) for row in rows]
    if not texts:
        return []
    vectors = to_fixed(encoder.encode([prepared(encoder, text) for text in texts]))
    return [
        {"key": row["key"], "vector": vector.astype(VECTOR).tobytes(), **_terms(text)}
        for row, text, vector in zip(rows, texts, vectors, strict=True)
    ]


def _terms(text: Text) -> Row:
    terms = terms_of(text)
    return {
        "terms": terms.ids.astype(TERM).tobytes(),
        "title_counts": terms.title.astype(COUNT).tobytes() if terms.title.any() else b"",
        "body_counts": terms.body.astype(COUNT).tobytes(),
    }


def with_vectors(rows: Iterable[Mapping[str, Any]], dimension: int) -> list[Row]:
    """The same for texts whose vectors are supplied (`given`: floats); raises ValueError for one that is not right."""
    made = []
    for row in rows:
        if row["given"] is None or len(row["given"]) != dimension:
            size = "none" if row["given"] is None else f"{len(row['given'])} numbers"
            raise ValueError(f"the vector of text {row['key'].hex()} has {size}; expected {dimension}")
        vector = to_fixed(np.asarray(row["given"], np.float32))
        text = ContextText(row["body"]) if row["title"] is None else PaperText(row["title"], row["body"])
        made.append({"key": row["key"], "vector": vector.astype(VECTOR).tobytes(), **_terms(text)})
    return made
