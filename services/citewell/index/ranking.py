"""Rankings that come out the same every time: by score, then by key (P7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from citewell.index.store import Answers, Hit, Nearest, Points

# Asked for beyond the limit, to see whether a tie straddles it.
_SLACK = 4


async def ranked(points: Points, queries: Sequence[Nearest]) -> Answers:
    """For each query its hits in order. Engines cut ties at the limit as they like, so a tie there is fetched whole."""
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
