"""Papers and spans as points of the store: ids, vectors, payload."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import NO_TERMS, Terms
from citewell.scholarly.papers import ExternalId, Paper

SCHEMA_VERSION = 2
"""Increased when stored points can no longer be read or filtered as before. Views of an older schema are dropped."""

PROFILE, CONTENT, LEXICAL, SPAN = "profile", "content", "lexical", "span"
"""Names of the stored vectors. LEXICAL is sparse and only selects candidates; scores are computed from TERMS."""
HYBRID = "hybrid"
"""A search by PROFILE and words together."""

TERMS, SPAN_TERMS = "terms", "span_terms"
"""Names of the stored bags of words. Like vectors, they are read only when requested by name."""

# Indexed payload fields: all fields used in filters or for ordering.
PAPER_KEYWORDS, SPAN_KEYWORDS = ("venue",), ("cited_id", "citing_id")
# `hidden` is 0 or 1: the embedded engine answers a range over an integer index 20 times as fast as a boolean match.
INTEGERS = ("hidden", "last_day", "year")

_NAMESPACE = uuid.UUID("5a6be1f6-6a3c-5d2f-9d0c-0f9a4f6f0c11")

Vector = NDArray[np.float32]
NO_VECTOR: Vector = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse vector as Qdrant takes it."""

    indices: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PaperPoint:
    """A paper as the ledger projects it."""

    paper: Paper
    version: int
    profile: Vector = field(default_factory=lambda: NO_VECTOR)
    content: Vector = field(default_factory=lambda: NO_VECTOR)
    terms: Terms = NO_TERMS
    """Weighted counts of the words in title, abstract and citing contexts; only the largest of a long list."""
    length: float = 0.0
    """The sum over all words, including those that were cut from a long list."""
    hidden: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SpanPoint:
    """A citing context of one paper about another, and the span in it that speaks of the cited paper."""

    key: str
    citing_id: str
    cited_id: str
    text: str
    version: int
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    published: PartialDate = UNKNOWN_DATE
    revision: int = 0
    hidden: bool = False
    extractor_hash: str = ""
    terms: Terms = NO_TERMS
    """Counts of the words of the whole text."""
    span_offset: int = 0
    span_length: int = 0
    """The span inside the text, in code points; length 0 = the whole text."""
    span_terms: Terms = NO_TERMS
    """Counts of the words of the span."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A stored point. In the payload, `key` names the paper or span and breaks ties; `version` orders writes."""

    id: uuid.UUID
    payload: dict[str, Any]
    vectors: Mapping[str, Vector | Sparse] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return str(self.payload["key"])

    @property
    def version(self) -> int:
        return int(self.payload["version"])

    def dense(self, name: str) -> Vector:
        """The named vector; empty if the point has none."""
        vector = self.vectors.get(name, NO_VECTOR)
        return NO_VECTOR if isinstance(vector, Sparse) else vector


def point_id(key: str) -> uuid.UUID:
    """The id a paper or span has in every store."""
    return uuid.uuid5(_NAMESPACE, key)


def unit(vector: Vector) -> Vector:
    """The vector normalised to unit length; a zero vector stays zero.

    Normalised here, so that every engine holds the same bits: Qdrant does not change unit vectors.
    """
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector


def pack(terms: Terms) -> str:
    """Terms as a payload holds them: base64 of the ids (uint32) and then the values (float32), little-endian."""
    return base64.b64encode(terms.ids.astype("<u4").tobytes() + terms.values.astype("<f4").tobytes()).decode()


def unpack(packed: str | None) -> Terms:
    if not packed:
        return NO_TERMS
    raw = base64.b64decode(packed)
    return Terms(np.frombuffer(raw, "<u4", len(raw) // 8), np.frombuffer(raw, "<f4", offset=len(raw) // 2))


def candidate_weights(terms: Terms, length: float) -> Sparse:
    """The sparse vector of a bag of words. It depends only on the paper, so new statistics do not change it."""
    half = 1.2 * (0.6 + 0.4 * length / _ORDINARY_LENGTH)
    return Sparse(tuple(terms.ids.tolist()), tuple((terms.values / (terms.values + half)).tolist()))


_ORDINARY_LENGTH = 200.0
"""A constant in place of the mean length of a bag of words, which changes with the collection."""


def newest(points: Iterable[Point]) -> list[Point]:
    """The newest version of each id: a batch may contain a paper twice."""
    kept: dict[uuid.UUID, Point] = {}
    for point in points:
        if point.id not in kept or kept[point.id].version < point.version:
            kept[point.id] = point
    return list(kept.values())


def paper_to_point(stored: PaperPoint) -> Point:
    """A hidden paper keeps its payload and no vector: a tombstone that no search can find."""
    paper = stored.paper
    vectors: dict[str, Vector | Sparse] = {}
    if not stored.hidden:
        vectors[PROFILE] = unit(stored.profile)
        if stored.content.size:
            vectors[CONTENT] = unit(stored.content)
        if len(stored.terms):
            vectors[LEXICAL] = candidate_weights(stored.terms, stored.length)
    payload = {
        "key": paper.id,
        "title": paper.title,
        "abstract": paper.abstract,
        "authors": list(paper.authors),
        "venue": paper.venue,
        "published": str(paper.published),
        "external_ids": [[other.scheme, other.value] for other in paper.external_ids],
        "in_degree": paper.in_degree,
        "revision": paper.revision,
        "year": paper.published.year,
        "last_day": paper.published.last_day(),
        "version": stored.version,
        "hidden": int(stored.hidden),
        "length": 0.0 if stored.hidden else float(np.float32(stored.length)),
        TERMS: "" if stored.hidden else pack(stored.terms),
    }
    return Point(point_id(paper.id), payload, vectors)


def paper_of(payload: Mapping[str, Any]) -> Paper:
    return Paper(
        id=payload["key"],
        title=payload["title"],
        abstract=payload["abstract"],
        authors=tuple(payload["authors"]),
        venue=payload["venue"],
        published=PartialDate.parse(payload["published"]),
        external_ids=tuple(ExternalId(scheme, value) for scheme, value in payload["external_ids"]),
        in_degree=payload["in_degree"],
        revision=payload["revision"],
    )


def paper_from_point(point: Point) -> PaperPoint:
    return PaperPoint(
        paper=paper_of(point.payload),
        version=point.version,
        profile=point.dense(PROFILE),
        content=point.dense(CONTENT),
        terms=unpack(point.payload.get(TERMS)),
        length=point.payload["length"],
        hidden=bool(point.payload["hidden"]),
    )


def span_to_point(span: SpanPoint) -> Point:
    payload = {
        "key": span.key,
        "citing_id": span.citing_id,
        "cited_id": span.cited_id,
        "text": span.text,
        "published": str(span.published),
        "year": span.published.year,
        "last_day": span.published.last_day(),
        "revision": span.revision,
        "version": span.version,
        "hidden": int(span.hidden),
        "extractor_hash": span.extractor_hash,
        "span": [span.span_offset, span.span_length],
        TERMS: "" if span.hidden else pack(span.terms),
        SPAN_TERMS: "" if span.hidden else pack(span.span_terms),
    }
    return Point(point_id(span.key), payload, {} if span.hidden else {SPAN: unit(span.vector)})


def span_from_point(point: Point) -> SpanPoint:
    payload = point.payload
    return SpanPoint(
        key=payload["key"],
        citing_id=payload["citing_id"],
        cited_id=payload["cited_id"],
        text=payload["text"],
        version=point.version,
        vector=point.dense(SPAN),
        published=PartialDate.parse(payload["published"]),
        revision=payload["revision"],
        hidden=bool(payload["hidden"]),
        extractor_hash=payload["extractor_hash"],
        terms=unpack(payload.get(TERMS)),
        span_offset=payload["span"][0],
        span_length=payload["span"][1],
        span_terms=unpack(payload.get(SPAN_TERMS)),
    )
