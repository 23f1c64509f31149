"""Search latency, recall and memory of each engine over the same points: python -m tests.load.index_bench.

Each engine runs in a process of its own over one stored view. Vectors are drawn around a few thousand centres, so that
neighbours are near, as with an encoder's. A paper has about 110 distinct words: most by Zipf's law, a third from a
vocabulary that it shares with its neighbours. A query has 80 terms of the paper it is near to. Recall is against a
full scan in double precision.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import multiprocessing
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from citewell.index.accelerator import AcceleratedPoints
from citewell.index.index import Index
from citewell.index.points import HYBRID, PROFILE, PaperPoint, SpanPoint
from citewell.index.postings import Postings
from citewell.index.queries import Search
from citewell.index.settings import IndexSettings
from citewell.index.store import Kind
from citewell.index.stores import configured_store
from citewell.index.views import View
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.papers import Paper, SearchFilter
from tests.load.latencies import Latencies

DIMENSION, LIMIT, SEED = 384, 300, 7
ENGINES = ("none", "flat", "sq8")
VIEW = View("bench", "bench", "bench", DIMENSION)
CENTRES, WORDS, DRAWN, QUERY_TERMS = 3000, 150_000, 124, 80
FILTERS = {
    "none": SearchFilter(),
    "published_before, half": SearchFilter(published_before=PartialDate(2005)),
    "3 of 60 venues": SearchFilter(venues=frozenset({"venue 1", "venue 2", "venue 3"})),
    "100 excluded ids": SearchFilter(excluded_ids=frozenset(f"p{number}" for number in range(100))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=88_000)
    parser.add_argument("--calls", type=int, default=200, help="measured per engine and filter")
    arguments = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("qdrant-edge-py", "faiss-cpu", "numpy")}
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{versions}; {arguments.papers:,} papers × {DIMENSION}, top {LIMIT}, {arguments.calls} calls each")
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for work, chosen in ((_fill, ("none",)), (_measure, ENGINES)):
            for engine in chosen:
                process = spawn.Process(target=_run, args=(work, engine, folder, arguments.papers, arguments.calls))
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(process.exitcode)


def _run(work, engine, folder, papers, calls):  # type: ignore[no-untyped-def]
    asyncio.run(work(engine, Path(folder), papers, calls))


def _settings(engine: str, folder: Path) -> IndexSettings:
    return IndexSettings(folder=folder, accelerator=engine)  # type: ignore[arg-type]


def _corpus(count: int) -> NDArray[np.float32]:
    draw = np.random.default_rng(SEED)
    centres = draw.standard_normal((CENTRES, DIMENSION), dtype=np.float32)
    vectors = centres[np.arange(count) % CENTRES]
    vectors += 0.8 * draw.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _bag(number: int) -> tuple[Terms, float]:
    """The words of a paper without the hundred most frequent words (function words)."""
    draw = np.random.default_rng([SEED, number])
    ranks = np.floor(np.exp(draw.uniform(np.log(100), np.log(WORDS), DRAWN))).astype(np.int64)
    shared = np.random.default_rng([SEED, number % CENTRES, 1]).integers(1000, WORDS, 200)
    ranks[::3] = draw.choice(shared, len(ranks[::3]))
    words, counts = np.unique(ranks * 28_000 % (1 << 32), return_counts=True)
    values = counts.astype(np.float32) * 1.5
    return Terms(words.astype(np.uint32), values), float(values.sum())


def _words_query(number: int) -> LexicalQuery:
    terms, _ = _bag(number)
    chosen = terms.ids[np.sort(np.random.default_rng(number).permutation(len(terms))[:QUERY_TERMS])]
    return LexicalQuery(Terms(chosen, np.full(len(chosen), 1 / len(chosen), np.float32)), 3.0, 1.2, 0.4, DRAWN * 1.5)


def _paper(number: int) -> Paper:
    return Paper(
        id=f"p{number}",
        title=f"On lantern number {number} and what it says of tides",
        abstract="word " * 150,
        authors=("Ada Fen", "Bo Rill"),
        venue=f"venue {number % 60}",
        published=PartialDate(1990 + number % 30, 1 + number % 12),
    )


async def _fill(engine: str, folder: Path, papers: int, calls: int) -> None:
    store = configured_store(_settings(engine, folder))
    await store.open()
    index, vectors = Index(store), _corpus(papers)
    await index.create_view(VIEW)
    await index.serve_view(VIEW.name)
    writes, started = Latencies(), time.monotonic()
    for start in range(0, papers, 256):
        batch = [
            PaperPoint(_paper(n), 1, vectors[n], vectors[n], *_bag(n)) for n in range(start, min(start + 256, papers))
        ]
        began = time.monotonic()
        await index.upsert(VIEW.name, VIEW.epoch, batch, [])
        writes.record(time.monotonic() - began)
    print(f"written in {time.monotonic() - started:.1f} s; 256 points: {writes.row()}")
    spans = Latencies()
    for cited in range(300):
        words = [
            SpanPoint(f"{citing}>{cited}", f"p{citing}", f"p{cited}", "said of it " * 12, 1, vectors[citing])
            for citing in range(1000, 1000 + 5000 // (cited + 10))
        ]
        for start in range(0, len(words), 256):
            began = time.monotonic()
            await index.upsert(VIEW.name, VIEW.epoch, [], words[start : start + 256])
            spans.record(time.monotonic() - began)
    stats = await index.stats()
    print(f"{stats.spans:,} spans; a batch: {spans.row()}; on disk {stats.disk_bytes >> 20} MiB")
    await store.close()


def _everything(papers: int) -> Postings:
    """The words of all papers, for the exact scores behind recall."""
    postings = Postings()
    for start in range(0, papers, 5000):
        rows = np.arange(start, min(start + 5000, papers))
        postings.put(rows, [_bag(row) for row in rows.tolist()])
    return postings


async def _measure(engine: str, folder: Path, papers: int, calls: int) -> None:
    store = configured_store(_settings(engine, folder))
    started = time.monotonic()
    await store.open()
    index = Index(store)
    points = store.points(VIEW, Kind.PAPERS)
    opened = time.monotonic() - started
    if isinstance(points, AcceleratedPoints):
        await points.loaded.wait()
    resident = psutil.Process().memory_info().rss >> 20
    print(
        f"\n{store.engine}: open after {opened:.1f} s, loaded after {time.monotonic() - started:.1f} s, {resident} MiB"
    )
    vectors = _corpus(papers)
    wide = vectors.astype(np.float64)
    draw = np.random.default_rng(SEED + 1)
    copy = _everything(papers)
    for name, search_filter in FILTERS.items():
        admitted = np.array([search_filter.admits(_paper(number)) for number in range(papers)])
        for field in (PROFILE, HYBRID):
            latencies, recalls, spent = Latencies(), [], 0.0
            for call in range(-5, calls):
                source = int(draw.integers(papers))
                query = vectors[source] + 0.05 * draw.standard_normal(DIMENSION, dtype=np.float32)
                words = _words_query(source) if field == HYBRID else None
                began, used = time.monotonic(), time.process_time()
                found = await index.search(
                    Search(LIMIT, query, lexical=words, matched_terms=10, searched=field, filter=search_filter)
                )
                if call >= 0:
                    latencies.record(time.monotonic() - began)
                    spent += time.process_time() - used
                if 0 <= call < 20:
                    scores = wide @ query / np.linalg.norm(query)
                    if words:
                        scores += words.weight * copy.scores(words, papers)
                    scores[~admitted] = -2.0
                    best = {f"p{number}" for number in np.argpartition(-scores, LIMIT)[:LIMIT]}
                    recalls.append(len(best & {hit.paper.id for hit in found.papers}) / LIMIT)
            cpu = spent / calls * 1000
            recall = f"recall@{LIMIT} {np.mean(recalls):.4f}"
            print(f"  {field:8} {name:24} {latencies.row()}  CPU {cpu:.1f} ms  {recall}", flush=True)
    at_once = Latencies()

    async def one() -> None:
        for number in range(calls // 8):
            began = time.monotonic()
            await index.search(Search(LIMIT, vectors[number], _words_query(number), searched=HYBRID))
            at_once.record(time.monotonic() - began)

    await asyncio.gather(*(one() for _ in range(8)))
    print(f"  {'hybrid   none, 8 in flight':33} {at_once.row()}")
    await store.close()


if __name__ == "__main__":
    main()
