"""Searches over citing contexts: the best contexts of given papers, and the spans that match a query."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np

from citewell.index.filters import VISIBLE, Condition, NoneOf, before, span_conditions
from citewell.index.following import Follower
from citewell.index.hybrid import cosines, word_parts
from citewell.index.points import SPAN, SPAN_TERMS, TERMS, Point, Vector, paper_of, point_id, span_from_point, unpack
from citewell.index.queries import Evidence, EvidenceSearch, FoundSpan, SpanSearch, SpanSupport
from citewell.index.ranking import ranked
from citewell.index.span_copy import Candidates, Citations, SpanCopy, span_text
from citewell.index.store import Answers, Hit, Nearest, Points
from citewell.index.threads import CopyThreads, postings_merged
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import Unavailable
from citewell.scholarly.papers import SearchFilter

COMPARED = 64
"""Contexts of a paper that are compared by words: the nearest to the vector, or the newest without a vector."""
MOST_PAPERS = 100
"""The most papers that a found span names: those with the largest support."""
MOST_CONTEXTS = 50
"""How many of its newest contexts determine a found span's cosine."""
_WIDEST = 4096
"""The most contexts that the store is asked for in the ranking by cosine."""


async def best_contexts(
    points: Points, search: EvidenceSearch, vector: Vector | None
) -> tuple[dict[str, list[Evidence]], Answers]:
    """For each cited paper, in the order asked, its best contexts."""
    cited_ids = list(dict.fromkeys(search.cited_ids))
    queries = [
        Nearest(
            SPAN, vector, search.limit, span_conditions(cited_id, search.published_before, search.excluded_citing_ids)
        )
        for cited_id in cited_ids
    ]
    if search.lexical is None:
        answers = await ranked(points, queries)
        chosen = [[(hit.point, hit.score if vector is not None else 0.0) for hit in hits] for hits in answers.hits]
    else:
        wider = [replace(query, limit=max(COMPARED, search.limit), payload=_COMPARED_FIELDS) for query in queries]
        answers = await ranked(points, wider)
        # In a thread: a thousand papers with 64 contexts each take a second.
        scored = await asyncio.to_thread(_with_words, answers.hits, search, by_vector=vector is not None)
        known = {point.id: point for point in await points.read([id_ for each in scored for id_, _ in each])}
        chosen = [[(known[id_], score) for id_, score in each if id_ in known] for each in scored]
    evidence = {
        cited_id: [Evidence(span_from_point(point), score) for point, score in each]
        for cited_id, each in zip(cited_ids, chosen, strict=True)
    }
    return evidence, answers


_COMPARED_FIELDS = ("key", "last_day", TERMS)


def _with_words(
    hits: Sequence[Sequence[Hit]], search: EvidenceSearch, *, by_vector: bool
) -> list[list[tuple[UUID, float]]]:
    """The best of each paper's contexts by cosine + weight · words, ties by key."""
    assert search.lexical is not None
    bags = [[unpack(hit.point.payload[TERMS]) for hit in each] for each in hits]
    lengths = [[float(terms.values.sum(dtype=np.float64)) for terms in each] for each in bags]
    query = search.lexical
    if not query.mean_length and any(lengths):
        everything = [length for each in lengths for length in each]
        query = replace(query, mean_length=sum(everything) / len(everything))
    ranking = []
    for found, terms, long in zip(hits, bags, lengths, strict=True):
        scored = [
            ((hit.score if by_vector else 0.0) + query.weight * word_parts(query, bag, length)[0], hit.point)
            for hit, bag, length in zip(found, terms, long, strict=True)
        ]
        best = sorted(scored, key=lambda each: (-each[0], each[1].key))[: search.limit]
        ranking.append([(point.id, score) for score, point in best])
    return ranking


class SpanWords:
    """The words of a view's spans in memory, kept up to date, and searched together with the store's vectors."""

    def __init__(self, spans: Points, papers: Points, threads: int, feed_seconds: float) -> None:
        self._spans, self._papers = spans, papers
        self._copy, self._threads = SpanCopy(), CopyThreads(threads)
        self._follower = Follower("spans", spans, (TERMS, SPAN_TERMS), self._begin, self._put, self._tidy, feed_seconds)

    def _begin(self) -> None:
        """Begins an empty copy; running searches keep the old one."""
        self._copy = SpanCopy()

    async def _put(self, points: Sequence[Point]) -> None:
        await self._threads.run_alone(self._copy.put, points)

    async def _tidy(self) -> None:
        await postings_merged(self._copy.postings, self._threads)

    async def close(self) -> None:
        await self._follower.close()
        self._threads.shutdown()

    async def search(self, search: SpanSearch, vector: Vector | None) -> tuple[list[FoundSpan], float]:
        """The union of the best distinct spans of each ranking, and the mean length of the admitted spans."""
        await self._loaded()
        await self._follower.follow_if_due()
        await self._loaded()
        copy = self._copy
        width, nearest_width, checked = 2 * search.prefetch, 4 * search.prefetch, dict[str, bool]()
        hits = await self._nearest(search, vector, nearest_width)
        while True:
            nearest = [hit.point.id for hit in hits]
            found: Candidates = await self._threads.run(copy.search, search, width, nearest)
            cited_ids = {cited for papers in found.citations.values() for cited in papers}
            await self._check(cited_ids, search.filter, checked)
            admitted = {
                group: papers
                for group, every in found.citations.items()
                if (papers := {cited: said for cited, said in every.items() if checked[cited]})
            }
            cosine = dict.fromkeys(group for group, cited in found.cosine if checked[cited])
            ranks = [
                {group: rank for rank, group in enumerate((each for each in ranking if each in admitted), 1)}
                for ranking in (found.okapi, found.plus, cosine)
            ]
            short = [len(each) < search.prefetch for each in ranks]
            wider = (short[0] and len(found.okapi) == width) or (short[1] and len(found.plus) == width)
            deeper = short[2] and len(hits) == nearest_width < _WIDEST
            if not wider and not deeper:
                break
            width *= 4 if wider else 1
            if deeper:
                nearest_width = min(4 * nearest_width, _WIDEST)
                hits = await self._nearest(search, vector, nearest_width)
        best = [{group: rank for group, rank in each.items() if rank <= search.prefetch} for each in ranks]
        groups = list(dict.fromkeys(group for each in best for group in each))
        spans = await self._told({group: admitted[group] for group in groups}, best, vector)
        return spans, found.mean_length

    async def _loaded(self) -> None:
        left = budget("loading the words of spans")
        try:
            await asyncio.wait_for(self._follower.loaded.wait(), None if math.isinf(left) else left)
        except TimeoutError:
            raise Unavailable("the words of spans are still being loaded", stage="spans") from None

    async def _nearest(self, search: SpanSearch, vector: Vector | None, limit: int) -> list[Hit]:
        """The contexts nearest to the vector; none without one."""
        if vector is None:
            return []
        conditions: list[Condition] = [VISIBLE]
        if search.published_before.known:
            conditions.append(before(search.published_before))
        for name, excluded in (("citing_id", search.excluded_citing_ids), ("cited_id", search.filter.excluded_ids)):
            if excluded:
                conditions.append(NoneOf(name, tuple(sorted(excluded))))
        answers = await ranked(self._spans, [Nearest(SPAN, vector, limit, tuple(conditions), payload=("key",))])
        return answers.hits[0]

    async def _check(self, cited: set[str], search_filter: SearchFilter, checked: dict[str, bool]) -> None:
        """Remembers for each cited paper whether it may be an answer."""
        unknown = cited - checked.keys()
        checked.update(dict.fromkeys(unknown, False))
        for point in await self._papers.read([point_id(each) for each in unknown]):
            checked[point.key] = not point.payload["hidden"] and search_filter.admits(paper_of(point.payload))

    async def _told(
        self, citations: Mapping[int, Citations], ranks: Sequence[Mapping[int, int]], vector: Vector | None
    ) -> list[FoundSpan]:
        """The found spans with their contexts and cosines, read from the store."""
        papers = {group: _largest(each) for group, each in citations.items()}
        told = {said[0][1] for each in papers.values() for said in each.values()}
        compared = {
            group: [id_ for said in each.values() for _, id_ in said][:MOST_CONTEXTS] if vector is not None else []
            for group, each in papers.items()
        }
        wanted = told.union(*compared.values())
        points = await self._spans.read(wanted, (SPAN,) if vector is not None else ())
        known = {point.id: point for point in points if not point.payload["hidden"]}
        spans = []
        for group, each in papers.items():
            supports = [
                SpanSupport(len({citing for citing, _ in said}), span_from_point(known[said[0][1]]))
                for said in each.values()
                if said[0][1] in known
            ]
            if not supports:  # hidden since the copy was searched
                continue
            okapi, plus, cosine = (each.get(group, 0) for each in ranks)
            vectors = [known[id_].dense(SPAN) for id_ in compared[group] if id_ in known]
            nearest = float(cosines(np.stack(vectors), vector).max()) if vectors and vector is not None else 0.0
            text = span_text(known[_first(each, known)])
            spans.append(FoundSpan(text, okapi, plus, cosine, nearest, supports))
        return spans


def _largest(papers: Citations) -> Citations:
    """The papers with the largest support, ties by id."""
    ordered = sorted(papers.items(), key=lambda each: (-len({citing for citing, _ in each[1]}), each[0]))
    return dict(ordered[:MOST_PAPERS])


def _first(papers: Citations, known: Mapping[UUID, Point]) -> UUID:
    """The first context that is known."""
    return next(said[0][1] for said in papers.values() if said[0][1] in known)
