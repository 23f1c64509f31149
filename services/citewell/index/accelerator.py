"""A copy of the profiles in memory in front of any store, exact with filters, and never the source of truth.

The store answers while the copy loads, and whatever the copy cannot: other vectors, other conditions. The copy follows
the store's change feed, so writes of other processes reach it as well as this one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

import faiss
import numpy as np

from citewell.index.faiss_index import FaissIndex, Form, answerable
from citewell.index.filters import Condition, holds
from citewell.index.points import PROFILE, Point
from citewell.index.store import Answers, Changes, Hit, Kind, Nearest, Page, Points, Store
from citewell.index.views import Registry, View
from citewell.runtime import telemetry

_PAGE = 500
_RETRY_SECONDS = 1.0
_RESCORED = 1.2
"""A quantised copy is asked for so many times the limit; the store's own vectors then decide."""

_loads = telemetry.meter.create_histogram("citewell_index_load.duration", unit="s", description="Time to load a copy")


class _Threads:
    """Searches side by side, changes alone. FAISS lets go of the GIL, so threads do help."""

    def __init__(self, count: int) -> None:
        # One search, one thread: spread over busy cores a search waits for its slowest part.
        self._executor = ThreadPoolExecutor(count, "faiss", initializer=partial(faiss.omp_set_num_threads, 1))
        self._count, self._permits = count, asyncio.Semaphore(count)

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        async with self._permits:
            return await self._in_thread(work, *args)

    async def run_alone(self, work: Callable[..., Any], *args: Any) -> Any:
        """To be called by one at a time."""
        async with contextlib.AsyncExitStack() as held:
            for _ in range(self._count):
                await held.enter_async_context(self._permits)
            return await self._in_thread(work, *args)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        running = asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # a caller that gives up does not end the thread: nobody else may come in yet
            raise

    def shutdown(self) -> None:
        self._executor.shutdown()


class AcceleratedPoints:
    """A view's papers: searches by profile are answered from memory once it is loaded."""

    def __init__(self, points: Points, dimension: int, form: Form, threads: int, feed_seconds: float) -> None:
        self._points, self._form, self._feed_seconds = points, form, feed_seconds
        self._index = FaissIndex(dimension, form)
        self._threads = _Threads(1 if form == "gpu" else threads)  # a GPU's resources serve one search at a time
        self._following, self._number, self._followed = asyncio.Lock(), 0, 0.0
        self.loaded = asyncio.Event()
        """Set once searches are answered from memory."""
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        started = time.monotonic()
        while not self.loaded.is_set():
            try:
                # What is written meanwhile is in the feed from here on.
                number, start = await self._points.change_number(), None
                while True:
                    page = await self._points.page(start, _PAGE, vectors=(PROFILE,))
                    await self._threads.run_alone(self._index.put, page.points)
                    start = page.next_id
                    if start is None:
                        break
                self._number = number
                self.loaded.set()
            except Exception as error:  # whatever it was: the store goes on answering, and is asked again
                telemetry.logger.warning("loading profiles failed", why=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        seconds = time.monotonic() - started
        _loads.record(seconds)
        telemetry.logger.info("profiles loaded", papers=len(self._index), seconds=round(seconds, 3))

    async def close(self) -> None:
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        self._threads.shutdown()

    async def upsert(self, points: Sequence[Point]) -> int:
        stale = await self._points.upsert(points)
        if self.loaded.is_set():
            await self._follow()
        return stale

    async def _follow(self) -> None:
        async with self._following:
            changes = await self._points.changes(self._number)
            if changes.ids:
                points = await self._points.read(changes.ids, (PROFILE,))
                await self._threads.run_alone(self._index.put, points)
            self._number, self._followed = changes.number, time.monotonic()

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        if not self.loaded.is_set() or not all(map(self._can_answer, queries)):
            return await self._points.nearest(queries)
        due = time.monotonic() - self._followed >= self._feed_seconds
        if due and await self._points.change_number() != self._number:
            await self._follow()
        hits = []
        for query in queries:
            found = await self._search(query)
            if found is None:
                return await self._points.nearest(queries)
            hits.append(found)
        return Answers(hits, f"faiss-{self._form}", exact=self._form != "sq8")

    def _can_answer(self, query: Nearest) -> bool:
        return (
            query.field == PROFILE
            and isinstance(query.vector, np.ndarray)
            and answerable(query.conditions)
            and not (query.exact and self._form == "sq8")
        )

    async def _search(self, query: Nearest) -> list[Hit] | None:
        assert isinstance(query.vector, np.ndarray)
        quantised = self._form == "sq8"
        limit = int(query.limit * _RESCORED) if quantised else query.limit
        ranking = await self._threads.run(self._index.search, query.vector, limit, query.conditions)
        if ranking is None:
            return None
        found = dict(ranking)
        points = await self._points.read(found, (PROFILE,) if quantised else ())
        # The store may know more by now: what was hidden or redated since is no answer.
        points = [p for p in points if not p.payload["hidden"] and all(holds(c, p) for c in query.conditions)]
        if quantised:
            found = {point.id: float(point.dense(PROFILE) @ query.vector) for point in points}
        return sorted((Hit(p, found[p.id]) for p in points), key=lambda hit: -hit.score)[: query.limit]

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        return await self._points.read(ids, vectors)

    async def page(
        self, start: UUID | None, limit: int, conditions: tuple[Condition, ...] = (), vectors: Collection[str] = ()
    ) -> Page:
        return await self._points.page(start, limit, conditions, vectors)

    async def count(self, conditions: tuple[Condition, ...] = ()) -> int:
        return await self._points.count(conditions)

    async def change_number(self) -> int:
        return await self._points.change_number()

    async def changes(self, after: int) -> Changes:
        return await self._points.changes(after)


class AcceleratedStore:
    """Any store, its papers searched in memory."""

    def __init__(self, store: Store, form: Form, *, threads: int = 2, feed_seconds: float = 0.0) -> None:
        self._store, self._form, self._threads, self._feed_seconds = store, form, threads, feed_seconds
        self._papers: dict[View, AcceleratedPoints] = {}
        self.engine = f"{store.engine}+faiss-{form}"

    async def open(self) -> None:
        await self._store.open()
        await self._load_known_views()

    async def _load_known_views(self) -> None:
        """Starts and ends copies with the views, whichever process created or dropped those."""
        known = set((await self._store.registry()).views.values())
        for view in known:
            self.points(view, Kind.PAPERS)
        for gone in self._papers.keys() - known:
            await self._papers.pop(gone).close()

    async def close(self) -> None:
        await asyncio.gather(*(papers.close() for papers in self._papers.values()))
        self._papers.clear()
        await self._store.close()

    async def check(self) -> None:
        await self._store.check()
        await self._load_known_views()

    async def registry(self) -> Registry:
        return await self._store.registry()

    async def create(self, view: View) -> None:
        await self._store.create(view)

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
                points, view.dimension, self._form, self._threads, self._feed_seconds
            )
        return self._papers[view]

    async def disk_bytes(self, view: View) -> int:
        return await self._store.disk_bytes(view)
