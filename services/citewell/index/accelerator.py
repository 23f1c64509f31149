"""A copy of the papers in memory in front of any store. It answers searches with filters, but owns no data.

The store answers while the copy loads, and queries that the copy cannot answer (other vectors or conditions). The copy
follows the store's change feed, so it sees the writes of this process and of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from citewell.index.filters import holds
from citewell.index.following import Follower
from citewell.index.hybrid import cosines, in_order, scored, to_rank, total
from citewell.index.paper_copy import Form, PaperCopy
from citewell.index.points import HYBRID, LEXICAL, PROFILE, TERMS, Point
from citewell.index.rows import answerable
from citewell.index.store import Answers, Changes, ChangesForgottenError, Hit, Kind, Nearest, Page, Points, Store
from citewell.index.threads import CopyThreads, postings_merged
from citewell.index.views import Registry, View


class AcceleratedPoints:
    """A view's papers: searches by profile and by words are answered from memory once it is loaded."""

    def __init__(
        self,
        points: Points,
        dimension: int,
        form: Form,
        threads: int,
        feed_seconds: float,
        words_folder: Path | None = None,
    ) -> None:
        self._points, self._dimension, self._form, self._words_folder = points, dimension, form, words_folder
        self._copy = PaperCopy(dimension, form, words_folder)
        self._threads = CopyThreads(1 if form == "gpu" else threads)  # FAISS on a GPU runs one search at a time
        self._follower = Follower("papers", points, (PROFILE, TERMS), self._begin, self._put, self._tidy, feed_seconds)
        self.loaded = self._follower.loaded
        """Set once searches are answered from memory."""

    def _begin(self) -> None:
        """Begins an empty copy; running searches keep the old one."""
        self._copy = PaperCopy(self._dimension, self._form, self._words_folder)

    async def _put(self, points: Sequence[Point]) -> None:
        await self._threads.run_alone(self._copy.put, points)

    async def _tidy(self) -> None:
        for postings in self._copy.words:
            await postings_merged(postings, self._threads)

    async def close(self) -> None:
        await self._follower.close()
        await asyncio.to_thread(self._threads.shutdown)  # searches may be running

    async def follow(self) -> None:
        """Adds the writes of other processes to the copy."""
        if self.loaded.is_set():
            await self._follower.follow_if_due()

    async def upsert(self, points: Sequence[Point]) -> int:
        stale = await self._points.upsert(points)
        if self.loaded.is_set():
            await self._follower.follow()
        return stale

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        if not self.loaded.is_set() or not all(map(self._can_answer, queries)):
            return await self._points.nearest(queries)
        await self._follower.follow_if_due()
        if not self.loaded.is_set():
            return await self._points.nearest(queries)
        hits = []
        for query in queries:
            found = await self._search(query)
            if found is None:
                return await self._points.nearest(queries)
            hits.append(found)
        exact = self._form == "flat" or all(query.field == LEXICAL for query in queries)
        return Answers(hits, f"faiss-{self._form}", exact, ties_in_order=exact)

    def _can_answer(self, query: Nearest) -> bool:
        if query.field == LEXICAL:
            return query.lexical is not None and answerable(query.conditions)
        return (
            query.field in (PROFILE, HYBRID)
            and isinstance(query.vector, np.ndarray)
            and answerable(query.conditions)
            and not (query.exact and self._form != "flat")
        )

    async def _search(self, query: Nearest) -> list[Hit] | None:
        if self._form == "gpu" and query.field != LEXICAL:
            return await self._search_on_gpu(query)
        quantised = self._form == "sq8" and query.field != LEXICAL
        if quantised and query.second:
            return await self._search_twice(query)
        ranking = await self._threads.run(self._copy.search, query, self._threads.helper)
        read = await self._points.read([found.id for found in ranking], (PROFILE,) if quantised else ())
        points = {point.id: point for point in read}
        hits = [
            Hit(point, found.score, found.profile, found.lexical, found.matched, found.second)
            for found in ranking
            if (point := points.get(found.id)) and _still_admitted(point, query)
        ]
        return await self._threads.run(_by_full_vectors, query, hits) if quantised else hits

    async def _search_twice(self, query: Nearest) -> list[Hit]:
        """A search with a second phase over int8 profiles: the copy chooses candidates, the stored points decide."""
        wide = replace(query, limit=to_rank(query), matched_terms=0, second=None)
        ranking = await self._threads.run(self._copy.search, wide, self._threads.helper)
        return await scored(self._points, query, [found.id for found in ranking])

    async def _search_on_gpu(self, query: Nearest) -> list[Hit] | None:
        if query.field == HYBRID:
            candidates = await self._threads.run(self._copy.promising, query)
            return None if candidates is None else await scored(self._points, query, candidates)
        ranking = await self._threads.run(self._copy.nearest, query, query.limit)
        if ranking is None:
            return None
        found = dict(ranking)
        points = [point for point in await self._points.read(found) if _still_admitted(point, query)]
        return sorted((Hit(point, found[point.id]) for point in points), key=lambda hit: -hit.score)

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        return await self._points.read(ids, vectors)

    async def page(self, start: UUID | None, limit: int, conditions: Any = (), vectors: Collection[str] = ()) -> Page:
        return await self._points.page(start, limit, conditions, vectors)

    async def count(self, conditions: Any = ()) -> int:
        return await self._points.count(conditions)

    async def change_number(self) -> int:
        try:
            return await self._points.change_number()
        except ChangesForgottenError:  # the store raises this only once, so the copy must be told, whoever called
            self._follower.load_again()
            raise

    async def changes(self, after: int) -> Changes:
        try:
            return await self._points.changes(after)
        except ChangesForgottenError:
            self._follower.load_again()
            raise


def _by_full_vectors(query: Nearest, candidates: Sequence[Hit]) -> list[Hit]:
    """The best of the candidates once their scores are exact."""
    if not candidates:
        return []
    assert isinstance(query.vector, np.ndarray)
    profile = cosines(np.stack([hit.point.dense(PROFILE) for hit in candidates]), query.vector)
    hits = [
        replace(
            hit,
            score=total(query, cosine, hit.lexical),
            profile=cosine if query.field == HYBRID else 0.0,
            point=replace(hit.point, vectors={}),
        )
        for hit, cosine in zip(candidates, profile.tolist(), strict=True)
    ]
    return sorted(hits, key=in_order)[: query.limit]


def _still_admitted(point: Point, query: Nearest) -> bool:
    """Whether a hit of the copy still meets the conditions in the store, which may be newer than the copy."""
    return not point.payload["hidden"] and all(holds(condition, point) for condition in query.conditions)


class AcceleratedStore:
    """Any store, its papers searched in memory."""

    def __init__(
        self,
        store: Store,
        form: Form,
        *,
        threads: int = 2,
        feed_seconds: float = 0.0,
        words_folder: Path | None = None,
    ) -> None:
        """Large parts of the words are kept in files of `words_folder`, if one is given."""
        self._store, self._form, self._threads, self._feed_seconds = store, form, threads, feed_seconds
        self._words_folder = words_folder
        self._papers: dict[View, AcceleratedPoints] = {}
        self.engine = f"{store.engine}+faiss-{form}"

    async def open(self) -> None:
        await self._store.open()
        await self._load_known_views()

    async def _load_known_views(self) -> None:
        """Starts a copy of each new view and ends copies of dropped views, also for views of other processes."""
        known = set((await self._store.registry()).views.values())
        for view in known:
            self.points(view, Kind.PAPERS)
        gone = [self._papers.pop(view) for view in self._papers.keys() - known]  # before another check finds them too
        for papers in gone:
            await papers.close()

    async def close(self) -> None:
        await asyncio.gather(*(papers.close() for papers in self._papers.values()))
        self._papers.clear()
        await self._store.close()

    async def check(self) -> None:
        await self._store.check()
        await self._load_known_views()
        # Also without searches: the store keeps only its newest changes. Views may be created or dropped meanwhile.
        for papers in list(self._papers.values()):
            await papers.follow()

    async def registry(self, *, fresh: bool = False) -> Registry:
        return await self._store.registry(fresh=fresh)

    async def create(self, view: View) -> bool:
        return await self._store.create(view)

    async def serve(self, name: str) -> None:
        await self._store.serve(name)

    async def drop(self, name: str) -> None:
        await self._store.drop(name)
        await self._load_known_views()

    def points(self, view: View, kind: Kind) -> Points:
        points = self._store.points(view, kind)
        if kind is not Kind.PAPERS:
            return points
        if view not in self._papers:
            self._papers[view] = AcceleratedPoints(
                points, view.dimension, self._form, self._threads, self._feed_seconds, self._words_folder
            )
        return self._papers[view]

    async def disk_bytes(self, view: View) -> int:
        return await self._store.disk_bytes(view)
