"""What the index costs at 10⁵ to 10⁷ invented papers: python -m tests.load.scale_bench load|search|copy --help.

    load FOLDER --papers N       writes N papers through the index into an embedded store: rate, disk, memory
    search FOLDER --papers N     opens that store with a copy in memory: time to load it, memory, latency, recall
    copy FOLDER --papers N       the same without the engine: the copy over a file of vectors (for 10⁷)

Recall is against all scores in double precision, which are computed chunk by chunk. Run one at a time, with nice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.accelerator import AcceleratedPoints, AcceleratedStore
from citewell.index.filters import paper_conditions
from citewell.index.index import Index
from citewell.index.points import HYBRID, PROFILE, TERMS, Point, pack
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.ranking import ranked
from citewell.index.store import Answers, Changes, Kind, Nearest, Page, Points
from citewell.index.views import View
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import SearchFilter
from tests.load.latencies import Latencies
from tests.load.scale_world import CHUNK, DIMENSION, Chunk, World, paper

LIMIT, RECALL_QUERIES = 300, 10
VIEW = View("bench", "bench", "bench", DIMENSION)
FILTERS = {
    "no filter": SearchFilter(),
    "before 2005": SearchFilter(published_before=PartialDate(2005)),
    "3 of 60 venues": SearchFilter(venues=frozenset({"venue 1", "venue 2", "venue 3"})),
}
PAGE = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "search", "copy"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--papers", type=int, default=100_000)
    parser.add_argument("--form", choices=("none", "flat", "sq8"), default="flat")
    parser.add_argument("--words-on-disk", action="store_true")
    parser.add_argument("--calls", type=int, default=40)
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.papers:,} papers × {DIMENSION}", flush=True
    )
    asyncio.run({"load": load, "search": search, "copy": copy}[arguments.what](arguments))


async def load(told: argparse.Namespace) -> None:
    store = EdgeStore(told.folder)
    await store.open()
    index = Index(store)
    await index.create_view(VIEW)
    await index.serve_view(VIEW.name)
    started, used = time.monotonic(), time.process_time()
    for chunk in World(told.papers).chunks():
        points = chunk.points()
        for start in range(0, len(points), 256):
            await index.upsert(VIEW.name, VIEW.epoch, points[start : start + 256], [])
        if (done := chunk.first + len(chunk)) == told.papers or done % (25 * CHUNK) == 0:
            seconds, cpu = time.monotonic() - started, time.process_time() - used
            disk = await store.disk_bytes(VIEW)
            print(
                f"{done:>10,}  {done / seconds:6.0f}/s  CPU {cpu:.0f} s  disk {disk / done:.0f} B a paper  {memory()}"
            )
    await store.close()


async def search(told: argparse.Namespace) -> None:
    store: Any = EdgeStore(told.folder)
    if told.form != "none":
        store = AcceleratedStore(store, told.form, words_folder=told.folder if told.words_on_disk else None)
    started = time.monotonic()
    await store.open()
    print(f"open after {time.monotonic() - started:.1f} s; {memory()}", flush=True)
    points = store.points(VIEW, Kind.PAPERS)
    await measure(told, points, started)
    await store.close()


async def copy(told: argparse.Namespace) -> None:
    generated = FileOfVectors(told.folder, World(told.papers))
    started = time.monotonic()
    points = AcceleratedPoints(generated, DIMENSION, told.form, 2, 0.0, told.folder if told.words_on_disk else None)
    await measure(told, points, started)
    await points.close()


async def measure(told: argparse.Namespace, points: Points, started: float) -> None:
    world = World(told.papers)
    if isinstance(points, AcceleratedPoints):
        await points.loaded.wait()
        print(f"{told.form} loaded after {time.monotonic() - started:.0f} s; {memory()}", flush=True)
        held = points._copy
        print(f"  words {held.postings.bytes / told.papers:.0f} B a paper in {held.postings.segments} segments")
    best = await asyncio.to_thread(exact, world)
    queries = [world.query(number) for number in range(told.calls)]
    for name, search_filter in FILTERS.items():
        for field in (PROFILE, HYBRID):
            latencies, recalls, spent = Latencies(), [], 0.0
            for number, (vector, words) in enumerate(queries):
                began, used = time.monotonic(), time.process_time()
                conditions = paper_conditions(search_filter)
                asked = Nearest(field, vector, LIMIT, conditions, lexical=words if field == HYBRID else None)
                hits = (await ranked(points, [asked])).hits[0]
                latencies.record(time.monotonic() - began)
                spent += time.process_time() - used
                if number < RECALL_QUERIES:
                    wanted = best[name, field][number]
                    recalls.append(len(wanted & {int(hit.point.key[1:]) for hit in hits}) / len(wanted))
            cpu = spent / len(queries) * 1000
            recall = f"recall@{LIMIT} mean {np.mean(recalls):.4f} least {min(recalls):.4f}"
            print(f"  {field:8} {name:16} {latencies.row()}  CPU {cpu:.0f} ms  {recall}", flush=True)
    print(f"  after the searches: {memory()}", flush=True)


def exact(world: World) -> dict[tuple[str, str], list[set[int]]]:
    """The best papers of each filter, field and query, as numbers."""
    queries = [world.query(number) for number in range(RECALL_QUERIES)]
    vectors = np.stack([vector for vector, _ in queries]).astype(np.float64)
    known = np.unique(np.concatenate([words.terms.ids for _, words in queries]))
    weights = np.zeros((len(known) + 1, len(queries)), np.float32)  # the last row is for all other words
    for number, (_, words) in enumerate(queries):
        weights[np.searchsorted(known, words.terms.ids), number] = words.terms.values * words.weight
    kept: dict[tuple[str, str], tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
    for chunk in world.chunks():
        cosines = chunk.vectors.astype(np.float64) @ vectors.T
        scores = {PROFILE: cosines, HYBRID: cosines + _lexical(chunk, known, weights, queries[0][1])}
        papers = [paper(chunk.first + place) for place in range(len(chunk))]
        for name, search_filter in FILTERS.items():
            admitted = np.array([search_filter.admits(each) for each in papers])
            numbers = chunk.first + np.flatnonzero(admitted)
            for field, each in scores.items():
                old = kept.get((name, field), (np.empty((0, len(queries))), np.empty((0, len(queries)), np.int64)))
                both = np.concatenate([old[0], each[admitted]])
                which = np.concatenate([old[1], np.repeat(numbers[:, np.newaxis], len(queries), axis=1)])
                top = np.argsort(-both, axis=0, kind="stable")[:LIMIT]
                kept[name, field] = np.take_along_axis(both, top, 0), np.take_along_axis(which, top, 0)
    return {key: [set(column.tolist()) for column in which.T] for key, (_, which) in kept.items()}


def _lexical(chunk: Chunk, known: NDArray[np.uint32], weights: NDArray[np.float32], query: Any) -> NDArray[np.float64]:
    """The weighted lexical score of each paper for each query. All papers have the mean length."""
    places = np.minimum(np.searchsorted(known, chunk.ids), len(known) - 1)
    found = np.flatnonzero(known[places] == chunk.ids)
    counts = chunk.counts[found]
    parts = weights[places[found]] * (counts / (counts + np.float32(query.k1)))[:, np.newaxis]
    owners = np.searchsorted(chunk.starts, found, side="right") - 1
    scores = np.zeros((len(chunk), weights.shape[1]))
    np.add.at(scores, owners, parts)
    return scores


def memory() -> str:
    """The process's own memory, and the files that it has mapped and the system caches."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    own, files = (int(told[name].split()[0]) >> 10 for name in ("RssAnon", "RssFile"))
    return f"own memory {own:,} MiB, mapped files in memory {files:,} MiB"


class FileOfVectors:
    """Points without an engine: vectors in a file, everything else is invented again when it is read."""

    def __init__(self, folder: Path, world: World) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._world = world
        self._vectors = np.memmap(folder / "vectors", np.float32, "w+", shape=(world.papers, DIMENSION))
        self._chunk: Chunk | None = None

    async def change_number(self) -> int:
        return 0

    async def changes(self, after: int) -> Changes:
        return Changes(0, frozenset())

    async def page(self, start: UUID | None, limit: int, conditions: Any = (), vectors: Collection[str] = ()) -> Page:
        first = start.int if start else 0
        return await asyncio.to_thread(self._page, first)

    def _page(self, first: int) -> Page:
        if first % CHUNK == 0:
            self._chunk = self._world.chunk(first // CHUNK)
            self._vectors[first : first + len(self._chunk)] = self._chunk.vectors
        chunk = self._chunk
        assert chunk is not None
        last = min(first + PAGE, chunk.first + len(chunk))
        points = []
        for number in range(first, last):
            place = number - chunk.first
            terms, length = chunk.bag(place)
            payload = _payload(number) | {"length": length, TERMS: pack(terms)}
            points.append(Point(UUID(int=number), payload, {PROFILE: chunk.vectors[place]}))
        return Page(points, UUID(int=last) if last < self._world.papers else None)

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        return await asyncio.to_thread(self._read, ids, PROFILE in vectors)

    def _read(self, ids: Collection[UUID], with_vector: bool) -> list[Point]:
        found = []
        for id_ in ids:
            vector = {PROFILE: np.array(self._vectors[id_.int])} if with_vector else {}
            found.append(Point(id_, _payload(id_.int), vector))
        return found

    async def upsert(self, points: Sequence[Point]) -> int:
        raise NotImplementedError

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        raise NotImplementedError

    async def count(self, conditions: Any = ()) -> int:
        return self._world.papers


def _payload(number: int) -> dict[str, Any]:
    """What a copy reads of a paper's payload."""
    written = paper(number)
    return {
        "key": written.id,
        "title": written.title,
        "in_degree": written.in_degree,
        "version": 1,
        "hidden": 0,
        "year": written.published.year,
        "last_day": written.published.last_day(),
        "venue": written.venue,
    }


if __name__ == "__main__":
    main()
