"""Measures the ledger's cost of one citation, and whether it grows: python -m tests.load.ledger_bench --help.

Vectors are drawn from a table, as if the publisher had supplied them: the encoder is not measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from citewell.profiler.index_views import Holdings
from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import open_ledger, start_rebuild
from citewell.profiler.ledger.points import PaperPoint, SpanPoint, read_points
from citewell.profiler.ledger.rows import KEY_BYTES
from citewell.profiler.ledger.rules import Kind, SourcedEvent
from citewell.profiler.ledger.said_terms import SaidTerms, replace_said_terms
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.statistics import refresh_step
from citewell.profiler.ledger.sums import write_vectors
from citewell.profiler.ledger.text_terms import write_text_terms
from citewell.profiler.ledger.views import View, serving_view
from citewell.profiler.lexical import Counts, TextTerms
from citewell.profiler.profiles import ProfileWeights, normalised, to_fixed
from citewell.profiler.projector import Projector
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event, Publication
from citewell.scholarly.words import term_id

DIMENSION = 384
REFERENCES = 20
YEARS = range(2000, 2021)
PAPER = {
    "revision": 1,
    "content_hash": "",
    "retracted": False,
    "version": 1,
    "body_revision": 1,
    "last_event": "",
}
# Words of a context or an abstract, drawn as often as words are in texts (Zipf's law).
CONTEXT_WORDS, ABSTRACT_WORDS = 45, 110
VOCABULARY = [f"word{number}x" for number in range(100_000)]
_SHARES = np.cumsum(1 / (np.arange(len(VOCABULARY)) + 2.7))
EDGE = {"revision": 1, "present": True, "day": 0, "gone_keys": b""}


class TableEncoder:
    """Unit vectors from a table, selected by a hash of the text."""

    model_id, model_hash, dimension = "table", f"table-{DIMENSION}", DIMENSION
    former_hashes, runtime = frozenset[str](), "table"

    def __init__(self) -> None:
        self._table = normalised(np.random.default_rng(0).standard_normal((4096, DIMENSION)))

    def paper_text(self, title: str, abstract: str) -> str:
        return f"{title}. {abstract}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._table[[zlib.crc32(text.encode()) % len(self._table) for text in texts]]


def drawn_words(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of words of the vocabulary."""
    return np.searchsorted(_SHARES, rng.random(count) * _SHARES[-1])


def text_of(seed: str, words: int) -> str:
    """An invented text."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    return " ".join(VOCABULARY[number] for number in drawn_words(words, rng))


class NoIndex:
    """An index that accepts every point and stores none."""

    async def holdings(self) -> Holdings:
        return Holdings()

    async def create_view(self, view: View) -> bool:
        return True

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None: ...

    async def serve_view(self, name: str) -> None: ...

    async def drop_view(self, name: str) -> None: ...

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        return [], []


class Bench:
    """One ledger to measure."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.encoder = TableEncoder()
        self.ledger = Ledger(self.database, Encoders(lambda name: self.encoder))
        open_ledger(self.database, self.encoder, ProfileWeights(0.8, 0.2))
        self.offset = 0

    def feed(self, publications: Iterator[Publication], batch: int = 1000) -> float:
        """Loads the publications; returns papers per second."""
        started, count, some = time.perf_counter(), 0, []
        for publication in publications:
            some.append(IncomingEvent(SourcedEvent(Event("", publication))))
            if len(some) == batch:
                self.ledger.apply(some)
                count, some = count + len(some), []
        if some:
            self.ledger.apply(some)
            count += len(some)
        return count / (time.perf_counter() - started)

    def fill(self, citing: str, citations: NDArray[np.int64], cited: str) -> None:
        """Stores citations [n, 2] of numbered papers directly, with the same result as `feed` but much faster.

        Every text has the same vector, so that sums are multiples of it.
        """
        text, model = b"\0" * KEY_BYTES, self.encoder.model_hash
        vector = to_fixed(self.encoder.encode(["a text"])[0])
        self.fill_words(citations, cited, text)
        papers = np.unique(citations[:, 0])
        groups, counts = np.unique(
            np.stack([citations[:, 1], YEARS.start + citations[:, 0] % len(YEARS)]), axis=1, return_counts=True
        )
        groups, counts = _with_totals(groups, counts)
        with self.database.writing() as connection:
            write_vectors(self.database, connection, model, {text: vector})
            for table, rows in (
                (schema.papers, ({**PAPER, "id": f"{citing}{number:07}", "text_key": text} for number in papers)),
                (
                    schema.edges,
                    (
                        {
                            **EDGE,
                            "citing": f"{citing}{one:07}",
                            "cited": cited if cited.endswith("!") else f"{cited}{other:07}",
                            "year": int(YEARS.start + one % len(YEARS)),
                            "text_key": text,
                            "context_keys": text,
                        }
                        for one, other in citations
                    ),
                ),
                (
                    schema.year_sums,
                    (
                        {
                            "model": model,
                            "cited": cited if cited.endswith("!") else f"{cited}{number:07}",
                            "year": int(year),
                            "contexts": (count * vector).tobytes(),
                            "contents": (count * vector).tobytes(),
                            "count": int(count),
                        }
                        for number, year, count in zip(*groups, counts, strict=True)
                    ),
                ),
            ):
                while some := list(islice(rows, 5000)):
                    self.database.insert_missing(connection, table, some)

    def fill_words(self, citations: NDArray[np.int64], cited: str, text: bytes) -> None:
        """Stores the words of `fill`'s citations: different texts for one famous paper, one text for the others."""
        rng = np.random.default_rng(3)
        ids = np.array([term_id(word) for word in VOCABULARY], np.uint32)
        same = _counts(ids[drawn_words(CONTEXT_WORDS, rng)])
        said: SaidTerms = {}
        years = YEARS.start + citations[:, 0] % len(YEARS)
        for columns in (years, np.full(len(years), EVERY_YEAR)):
            pairs, counts = np.unique(np.stack([citations[:, 1], columns]), axis=1, return_counts=True)
            for number, year, count in zip(*pairs, counts, strict=True):
                if cited.endswith("!"):
                    said[cited, int(year)] = _counts(ids[drawn_words(int(count) * CONTEXT_WORDS, rng)])
                else:
                    said[f"{cited}{number:07}", int(year)] = Counts(same.ids, same.counts * count)
        own = TextTerms(same.ids, 0 * same.counts, same.counts)
        with self.database.writing() as connection:
            write_text_terms(self.database, connection, {text: own})
            replace_said_terms(self.database, connection, [], said)

    def cite(self, cited: str) -> float:
        """Seconds to apply one publication with one citation of this paper."""
        self.offset += 1
        paper = publication(f"probe-{self.offset}", [cited], 2021)
        event = IncomingEvent(
            SourcedEvent(Event(f"probe-{self.offset}", paper), LogPosition("bench", 0, self.offset - 1))
        )
        started = time.perf_counter()
        self.ledger.apply([event])
        return time.perf_counter() - started

    def read(self, cited: str) -> float:
        """Seconds to read the data to project for this paper."""
        started = time.perf_counter()
        with self.database.reading() as connection:
            read_points(connection, serving_view(connection), [(Kind.PAPER, cited)])
        return time.perf_counter() - started

    def citations(self) -> int:
        with self.database.reading() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(schema.edges)) or 0

    def project(self) -> tuple[int, float]:
        """The number of marked objects, and the seconds to project them without an index."""
        projector = Projector(self.database, self.ledger.encoders, NoIndex(), lambda: None)

        async def all_of_it() -> int:
            total = 0
            while done := await projector.step():
                total += done
            return total

        started = time.perf_counter()
        return asyncio.run(all_of_it()), time.perf_counter() - started


def _with_totals(groups: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The (paper, year) groups [2, n] and their counts, with a group EVERY_YEAR for each paper of several years."""
    papers, paper_of, years = np.unique(groups[0], return_inverse=True, return_counts=True)
    totals = np.bincount(paper_of, weights=counts).astype(np.int64)
    several = years > 1
    of_all = np.stack([papers[several], np.full(several.sum(), EVERY_YEAR)])
    return np.concatenate([groups, of_all], axis=1), np.concatenate([counts, totals[several]])


def _counts(ids: NDArray[np.uint32]) -> Counts:
    found, counts = np.unique(ids, return_counts=True)
    return Counts(found, counts.astype(np.int64))


def publication(paper_id: str, cited: Sequence[str], year: int) -> Publication:
    return Publication(
        paper_id,
        1,
        f"Title of {paper_id}",
        text_of(paper_id, ABSTRACT_WORDS),
        published=PartialDate(year),
        masked_contexts=tuple(
            MaskedContext(f"{text_of(paper_id + other, CONTEXT_WORDS)} TARGETCIT", other) for other in cited
        ),
    )


def corpus(papers: int) -> Iterator[Publication]:
    """Papers with REFERENCES citations each; some are cited far more often than others."""
    citations = drawn_citations(papers)
    for number in range(papers):
        cited = sorted({f"p{other:07}" for other in citations[citations[:, 0] == number, 1]})
        yield publication(f"p{number:07}", cited, YEARS.start + number % len(YEARS))


def drawn_citations(papers: int) -> NDArray[np.int64]:
    cited = (papers * np.random.default_rng(1).random((papers, REFERENCES)) ** 3).astype(np.int64)
    citing = np.repeat(np.arange(papers), REFERENCES)
    return np.unique(np.stack([citing, cited.ravel()], axis=1), axis=0)


def compare(name: str, one: Callable[[], float], other: Callable[[], float], rounds: int) -> None:
    """Measures both in turns, so that other load on the machine affects both equally."""
    times = np.array([(one(), other()) for _ in range(rounds)]) * 1000
    low, high = np.median(times, axis=0), np.percentile(times, 95, axis=0)
    print(
        f"{name:44} {low[0]:8.2f} {low[1]:8.2f}   p95 {high[0]:7.2f} {high[1]:7.2f}   ratio {low[1] / low[0]:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-degree", type=int, default=100_000)
    parser.add_argument("--citations", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="where the ledgers are written; else a temporary folder")
    parser.add_argument("--postgres", nargs=2, metavar="URL", help="two empty databases to measure instead of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        urls = options.postgres or [f"sqlite:///{folder}/{name}.sqlite" for name in ("small", "large")]
        small, large = (Bench(url) for url in urls)
        engine = "PostgreSQL" if options.postgres else f"SQLite {sqlite3.sqlite_version}"
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, {engine}, {DIMENSION} dimensions")
        rate = small.feed(corpus(500))
        print(f"loaded {small.citations()} citations: {rate:.0f} papers/s, {rate * REFERENCES:.0f} citations/s")
        objects, seconds = small.project()
        print(f"projected {objects} objects: {objects / seconds:.0f}/s (no index)")
        started = time.perf_counter()
        refresh_step(small.database)
        print(f"word statistics: {500 / (time.perf_counter() - started):.0f} papers/s")
        start_rebuild(small.database, small.encoder, ProfileWeights(0.5, 0.5))
        objects, seconds = small.project()
        print(f"other α, β: {objects / seconds:.0f} objects/s (no index)")
        large.fill("p", drawn_citations(options.citations // REFERENCES), "p")
        for name, count in (("seldom!", 10), ("often!", options.in_degree)):
            small.fill(f"fan-{name}-", np.stack([np.arange(count), np.zeros(count, np.int64)], axis=1), name)
            for bench in (small, large):
                bench.feed(iter([publication(name, [], 2000)]))
        print(
            f"{large.citations():,} citations in the large ledger, {options.in_degree:,} of one paper in the small one"
        )
        print(f"{'milliseconds, medians':44} {'one':>8} {'other':>8}")
        compare(
            f"apply a citation: 10,000 or {options.citations:,} stored",
            lambda: small.cite("p0000250"),
            lambda: large.cite("p0000250"),
            options.rounds,
        )
        for what, measure in (("apply a citation", small.cite), ("read its point", small.read)):
            compare(
                f"{what}: cited 10 or {options.in_degree:,} times",
                lambda measure=measure: measure("seldom!"),  # type: ignore[misc]
                lambda measure=measure: measure("often!"),  # type: ignore[misc]
                options.rounds,
            )
        for bench in (small, large):
            bench.database.close()


if __name__ == "__main__":
    main()
