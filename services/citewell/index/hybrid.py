"""Searches by words, alone or together with the profile, over any set of points.

    LEXICAL   lexical score
    HYBRID    cosine to the profile + weight · lexical score

An engine that cannot scan all papers names candidates by each part alone. Their scores are then computed here, from the
stored vector and the stored bag of words, in a fixed order of operations: every engine gives a paper the same score.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.filters import holds
from citewell.index.points import HYBRID, LEXICAL, PROFILE, TERMS, Sparse, Vector, unpack
from citewell.index.store import Answers, Hit, Nearest, Points
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms, contributions

CANDIDATES = 2
"""Each part names so many times the limit, and no fewer than LEAST_CANDIDATES."""
LEAST_CANDIDATES = 200

Scores = NDArray[np.float64]


def cosines(vectors: Vector, vector: Vector) -> Scores:
    """The cosine of each row, both at unit length. A row's cosine does not depend on the other rows."""
    return np.asarray((vectors.astype(np.float64) * vector.astype(np.float64)).sum(axis=1))


def word_parts(query: LexicalQuery, terms: Terms, length: float) -> tuple[float, Terms]:
    """The lexical score of a bag of words, and what each matched term adds to it."""
    # Of type float32, so that the operations are those of the postings; summed one after the other, as there.
    parts = contributions(query, terms, np.float32(length))  # type: ignore[arg-type]
    return (float(np.cumsum(parts.values, dtype=np.float64)[-1]) if len(parts) else 0.0), parts


async def by_words(points: Points, queries: Sequence[Nearest]) -> Answers:
    """Answers queries that have a lexical part: candidates by each part alone, scored by both."""
    hits, engine, exact = [], "", True
    for query in queries:
        wanted = replace(query, limit=max(CANDIDATES * query.limit, LEAST_CANDIDATES), lexical=None, payload=("key",))
        assert query.lexical is not None
        terms = query.lexical.terms
        parts = []
        if len(terms):
            sparse = Sparse(tuple(terms.ids.tolist()), tuple(terms.values.tolist()))
            parts.append(replace(wanted, field=LEXICAL, vector=sparse))
        if query.field == HYBRID:
            parts.append(replace(wanted, field=PROFILE))
        ids: set[UUID] = set()
        for part in parts:
            answers = await points.nearest([part])
            engine, exact = answers.engine, exact and answers.exact and len(answers.hits[0]) < part.limit
            ids.update(hit.point.id for hit in answers.hits[0])
        hits.append(await scored(points, query, ids))
    return Answers(hits, engine, exact)


async def scored(points: Points, query: Nearest, ids: Collection[UUID]) -> list[Hit]:
    """The best of these points by the query's score, in order."""
    assert query.lexical is not None
    hybrid = query.field == HYBRID
    found = [
        point
        for point in await points.read(ids, (PROFILE, TERMS) if hybrid else (TERMS,))
        if not point.payload["hidden"] and all(holds(condition, point) for condition in query.conditions)
    ]
    if not found:
        return []
    profile = np.zeros(len(found))
    if hybrid:
        assert isinstance(query.vector, np.ndarray)
        profile = cosines(np.stack([point.dense(PROFILE) for point in found]), query.vector)
    hits = []
    for point, cosine in zip(found, profile.tolist(), strict=True):
        lexical, parts = word_parts(query.lexical, unpack(point.payload.pop(TERMS)), point.payload["length"])
        if hybrid or lexical > 0:
            matched = parts.largest(query.matched_terms) if query.matched_terms else NO_TERMS
            hits.append(Hit(point, total(query, cosine, lexical), cosine, lexical, matched))
    return sorted(hits, key=in_order)[: query.limit]


def total(query: Nearest, cosine: float, lexical: float) -> float:
    """The score that the ranking goes by."""
    if query.lexical is None:
        return cosine
    return cosine + query.lexical.weight * lexical if query.field == HYBRID else lexical


def in_order(hit: Hit) -> tuple[float, str]:
    """Sorts hits by score, then by key."""
    return -hit.score, hit.point.key
