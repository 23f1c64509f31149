"""What the store keeps of a paper and of a span, and how both become points: ids, vectors, payload."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.papers import ExternalId, Paper

SCHEMA_VERSION = 1
"""Grows when stored points can no longer be read or filtered as before; such a store is rebuilt, never guessed at."""

PROFILE, CONTENT, LEXICAL, SPAN = "profile", "content", "lexical", "span"
"""Names of the stored vectors."""

# Indexed payload fields: every one that may be filtered or ordered by.
PAPER_KEYWORDS, SPAN_KEYWORDS = ("venue",), ("cited_id", "citing_id")
# `hidden` is 0 or 1: the embedded engine answers a range over an integer index 20 times as fast as a boolean match.
INTEGERS = ("hidden", "last_day", "year")

_NAMESPACE = uuid.UUID("5a6be1f6-6a3c-5d2f-9d0c-0f9a4f6f0c11")

Vector = NDArray[np.float32]
NO_VECTOR: Vector = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Weights of terms."""

    indices: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


NO_TERMS = Sparse()


@dataclass(frozen=True, slots=True, eq=False)
class PaperPoint:
    """A paper as the ledger wants it served."""

    paper: Paper
    version: int
    profile: Vector = field(default_factory=lambda: NO_VECTOR)
    content: Vector = field(default_factory=lambda: NO_VECTOR)
    lexical: Sparse = NO_TERMS
    hidden: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SpanPoint:
    """Words of one paper about another."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """What a store holds under one id. The payload's `key` names it and breaks ties, its `version` orders writes."""

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
        """The named vector; an empty one where the point has none."""
        vector = self.vectors.get(name, NO_VECTOR)
        return NO_VECTOR if isinstance(vector, Sparse) else vector


def point_id(key: str) -> uuid.UUID:
    """The id a paper or span has in every store."""
    return uuid.uuid5(_NAMESPACE, key)


def unit(vector: Vector) -> Vector:
    """The vector at length one, as cosine engines store it; zero stays zero.

    Done here, so that every engine holds the same bits: Qdrant leaves unit vectors alone.
    """
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector


def newest(points: Iterable[Point]) -> list[Point]:
    """One point an id, the newest version: a batch may name a paper twice."""
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
        if stored.lexical.indices:
            vectors[LEXICAL] = stored.lexical
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
        lexical=_sparse(point, LEXICAL),
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
    )


def _sparse(point: Point, name: str) -> Sparse:
    vector = point.vectors.get(name)
    return vector if isinstance(vector, Sparse) else NO_TERMS
