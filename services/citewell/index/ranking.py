"""Deterministic rankings: by score, then by key (P7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from citewell.index.store import Answers, Hit, Nearest, Points

# Results requested beyond the limit, to detect a tie across it.
_SLACK = 4


async def ranked(points: Points, queries: Sequence[Nearest]) -> Answers:
    """The ordered hits of each query. Engines cut ties at the limit arbitrarily, so such a tie is read completely."""
    settled: list[list[Hit]] = [[] for _ in queries]
    pending = {number: query.limit + _SLACK for number, query in enumerate(queries)}
    while True:
        answers = await points.nearest([replace(queries[number], limit=size) for number, size in pending.items()])
        wider = {}
        for (number, size), hits in zip(pending.items(), answers.hits, strict=True):
            limit = queries[number].limit
            if len(hits) >= size and hits[limit - 1].score == hits[-1].score:
                wider[number] = 2 * size
            else:
                settled[number] = sorted(hits, key=lambda hit: (-hit.score, hit.point.key))[:limit]
        if not wider:
            return replace(answers, hits=settled)
        pending = wider
