"""Searches by words, alone or together with the profile, over any set of points.

    LEXICAL   lexical score
    HYBRID    cosine to the profile + weight · lexical score

An engine that cannot scan all papers selects candidates by each part alone. Their scores are then computed here, from
the stored vector and bag of words, in a fixed order of operations, so that every engine gives a paper the same score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.filters import These, holds
from citewell.index.points import HYBRID, LEXICAL, PROFILE, TERMS, Point, Sparse, Vector, unpack
from citewell.index.second_phase import DEPTH, Candidates, Matches, title_terms
from citewell.index.second_phase_model import SecondPhase
from citewell.index.store import Answers, Hit, Nearest, Points
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms, contributions, shared_terms

NAMED, MOST_NAMED = 4, 8_000
"""Each part selects NAMED times the limit as candidates, and at least LEAST_CANDIDATES.

MOST_NAMED limits the memory of a search.
"""
SCORED = 1.5
"""This many times the limit are scored exactly: the best by the engine's approximate scores."""
LEAST_CANDIDATES = 200

Scores = NDArray[np.float64]


def cosines(vectors: Vector, vector: Vector) -> Scores:
    """The cosine of each row; all vectors have unit length. A row's cosine does not depend on the other rows."""
    return np.asarray((vectors.astype(np.float64) * vector.astype(np.float64)).sum(axis=1))


def word_parts(query: LexicalQuery, terms: Terms, length: float) -> tuple[float, Terms]:
    """The lexical score of a bag of words, and the share of each matched term."""
    # In float32 and summed one after the other, as in the postings, so that both results are equal to the last bit.
    parts = contributions(query, terms, np.float32(length))  # type: ignore[arg-type]
    return (float(np.cumsum(parts.values, dtype=np.float64)[-1]) if len(parts) else 0.0), parts


async def by_words(points: Points, queries: Sequence[Nearest]) -> Answers:
    """Answers queries that have a lexical part: candidates by each part alone, scored by both."""
    hits, engine, exact = [], "", True
    for query in queries:
        assert query.lexical is not None
        terms = query.lexical.terms
        wanted = replace(query, limit=named(query), lexical=None, payload=("key",), second=None)
        parts = []
        if query.field == HYBRID:
            parts.append((1.0, replace(wanted, field=PROFILE)))
        if len(terms):
            sparse = Sparse(tuple(terms.ids.tolist()), tuple(terms.values.tolist()))
            parts.append((query.lexical.weight, replace(wanted, field=LEXICAL, vector=sparse)))
        lists: list[dict[UUID, float]] = []
        for weight, part in parts:
            answers = await points.nearest([part])
            engine, exact = answers.engine, exact and answers.exact and len(answers.hits[0]) < part.limit
            lists.append({hit.point.id: weight * hit.score for hit in answers.hits[0]})
        everyone = {id_ for scores in lists for id_ in scores}
        for scores, (weight, part) in zip(lists, parts, strict=True):  # the candidates of the other part
            if missing := everyone - scores.keys():
                these = replace(part, limit=len(missing), conditions=(These(frozenset(missing)),))
                answers = await points.nearest([these])
                scores.update({hit.point.id: weight * hit.score for hit in answers.hits[0]})
        sums = {id_: sum(scores.get(id_, 0.0) for scores in lists) for id_ in everyone}
        best = sorted(sums, key=lambda id_: (-sums[id_], id_))[: to_score(query)]
        hits.append(await scored(points, query, best))
    return Answers(hits, engine, exact)


def named(query: Nearest) -> int:
    """How many candidates each part selects."""
    return min(max(NAMED * query.limit, to_rank(query), LEAST_CANDIDATES), MOST_NAMED)


def to_score(query: Nearest) -> int:
    """How many candidates are scored exactly."""
    return max(int(SCORED * query.limit), to_rank(query), LEAST_CANDIDATES)


def to_rank(query: Nearest) -> int:
    """How many candidates the first phase must find."""
    return max(query.limit, DEPTH) if query.second else query.limit


async def scored(points: Points, query: Nearest, ids: Collection[UUID]) -> list[Hit]:
    """The best of these points by the query's score, in order."""
    found = await points.read(ids, (PROFILE, TERMS) if query.field == HYBRID else (TERMS,))
    return await asyncio.to_thread(_scored, query, found)


def _scored(query: Nearest, points: Sequence[Point]) -> list[Hit]:
    """Runs in a thread, because the largest searches take half a second."""
    assert query.lexical is not None
    hybrid = query.field == HYBRID
    found = [
        point
        for point in points
        if not point.payload["hidden"] and all(holds(condition, point) for condition in query.conditions)
    ]
    if not found:
        return []
    profile = np.zeros(len(found))
    if hybrid:
        assert isinstance(query.vector, np.ndarray)
        profile = cosines(np.stack([point.dense(PROFILE) for point in found]), query.vector)
    hits, bags = [], {}
    for point, cosine in zip(found, profile.tolist(), strict=True):
        bags[point.key] = unpack(point.payload.pop(TERMS))
        lexical, parts = word_parts(query.lexical, bags[point.key], point.payload["length"])
        if hybrid or lexical > 0:
            matched = parts.largest(query.matched_terms) if query.matched_terms else NO_TERMS
            hits.append(Hit(point, total(query, cosine, lexical), cosine, lexical, matched))
    hits.sort(key=in_order)
    if query.second:
        hits = _ranked_again(query, query.second, hits, bags)
    return hits[: query.limit]


def _ranked_again(query: Nearest, second: SecondPhase, hits: list[Hit], bags: Mapping[str, Terms]) -> list[Hit]:
    """The first `query.limit` of the best hits in the order of the second phase, then those beyond `DEPTH`."""
    assert query.lexical is not None
    head = hits[:DEPTH]
    points = [hit.point for hit in head]
    titles = [title_terms(point.payload["title"]) for point in points]
    candidates = Candidates(
        np.array([hit.score for hit in head]),
        np.array([hit.profile for hit in head]),
        np.array([hit.lexical for hit in head]),
        np.stack([point.dense(PROFILE) for point in points]),
        _matches(query.lexical.terms, [bags[point.key] for point in points]),
        np.array([point.payload["length"] for point in points], np.float64),
        _matches(query.lexical.terms, titles),
        np.array([len(title) for title in titles], np.float64),
        np.array([point.payload["in_degree"] for point in points], np.float64),
    )
    ranked = second.ranked(query.lexical.mean_length, candidates, [hit.point.key for hit in head], query.limit)
    return [replace(head[score.first_rank - 1], second=score) for score in ranked] + hits[DEPTH:]


def _matches(query: Terms, bags: Sequence[Terms]) -> Matches:
    shared = [shared_terms(query, bag) for bag in bags]
    owners = np.repeat(np.arange(len(bags)), [len(terms) for terms, _ in shared])
    terms, counts = (np.concatenate(each) for each in zip(*shared, strict=True))
    return Matches(owners, terms, counts.astype(np.float64))


def total(query: Nearest, cosine: float, lexical: float) -> float:
    """The score that the ranking goes by."""
    if query.lexical is None:
        return cosine
    return cosine + query.lexical.weight * lexical if query.field == HYBRID else lexical


def in_order(hit: Hit) -> tuple[float, str]:
    """Sorts hits by score, then by key."""
    return -hit.score, hit.point.key
