"""Deterministic rankings: by score, then by key (P7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from citewell.index.store import Answers, Hit, Nearest, Points

# Results requested beyond the limit, to detect a tie across it.
_SLACK = 4
MOST_HITS = 65_536
"""The most hits of one query. A longer tie is cut where the engine cuts it."""
_NEEDED = ("key", "last_day")
"""The payload fields that scores and order come from."""


async def ranked(points: Points, queries: Sequence[Nearest]) -> Answers:
    """The ordered hits of each query. Engines cut ties at the limit arbitrarily, so such a tie is read completely."""
    answers = await points.nearest([replace(query, limit=query.limit + _SLACK) for query in queries])
    settled: list[list[Hit]] = [[] for _ in queries]
    tied = {}
    for number, (query, hits) in enumerate(zip(queries, answers.hits, strict=True)):
        if not answers.ties_in_order and _is_cut(query, hits, query.limit + _SLACK):
            tied[number] = query
        else:
            settled[number] = _best(query, hits)
    for number, query in tied.items():
        settled[number] = await _untied(points, query)
    return replace(answers, hits=settled)


async def _untied(points: Points, query: Nearest) -> list[Hit]:
    """The hits of a query whose limit cuts a tie. Payloads are read for these hits only, not for the whole tie."""
    size = query.limit + _SLACK
    while True:
        size = min(2 * size, MOST_HITS)
        [hits] = (await points.nearest([replace(query, limit=size, payload=(*_NEEDED, *query.payload))])).hits
        if size == MOST_HITS or not _is_cut(query, hits, size):
            break
    best = _best(query, hits)
    if query.payload:
        return best
    told = {point.id: point for point in await points.read([hit.point.id for hit in best])}
    return [replace(hit, point=told[hit.point.id]) for hit in best if hit.point.id in told]


def _is_cut(query: Nearest, hits: Sequence[Hit], size: int) -> bool:
    """Whether the last of `size` hits has the score of the last one within the limit."""
    return len(hits) >= size and hits[query.limit - 1].order == hits[-1].order


def _best(query: Nearest, hits: Sequence[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda hit: (*hit.order, hit.point.key))[: query.limit]
