"""Invented papers for measurements at 10⁵ to 10⁷: generated chunk by chunk, never kept.

Vectors lie around a few thousand centres, as an encoder's do, and have unit length. A paper has about 110 distinct
words: two thirds by Zipf's law, a third from a vocabulary that it shares with its neighbours. The hundred most frequent
words are left out, like function words. A query has 80 terms of the paper that it is near to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.index.points import PaperPoint, Vector
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.papers import Paper

DIMENSION, SEED = 384, 7
CHUNK = 4096
"""Papers generated at once. A chunk depends on its number only."""
CENTRES, WORDS, DRAWN, SHARED, QUERY_TERMS = 3000, 150_000, 124, 200, 80
YEARS, VENUES = 30, 60
_SPREAD = 0.8
_NOISE = 0.05
_ID_STEP = 28_000
"""Numbers of words times this are term ids: spread over 32 bits, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive papers: their vectors, and their words as runs of `ids` and `counts`."""

    first: int
    vectors: Vector
    starts: NDArray[np.int64]
    ids: NDArray[np.uint32]
    counts: NDArray[np.float32]
    lengths: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.vectors)

    def bag(self, place: int) -> tuple[Terms, float]:
        words = slice(self.starts[place], self.starts[place + 1])
        return Terms(self.ids[words], self.counts[words]), float(self.lengths[place])

    def points(self) -> list[PaperPoint]:
        return [
            PaperPoint(paper(self.first + place), 1, vector, vector, *self.bag(place))
            for place, vector in enumerate(self.vectors)
        ]


class World:
    """The centres, and the vocabulary around each."""

    def __init__(self, papers: int) -> None:
        draw = np.random.default_rng(SEED)
        self.papers = papers
        self._centres = draw.standard_normal((CENTRES, DIMENSION), dtype=np.float32)
        self._shared = draw.integers(1000, WORDS, (CENTRES, SHARED))

    def chunks(self) -> Iterator[Chunk]:
        return (self.chunk(number) for number in range(-(-self.papers // CHUNK)))

    def chunk(self, number: int) -> Chunk:
        first = number * CHUNK
        size = min(CHUNK, self.papers - first)
        draw = np.random.default_rng([SEED, number])
        centre = draw.integers(0, CENTRES, size)
        vectors = self._centres[centre] + _SPREAD * draw.standard_normal((size, DIMENSION), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        ranks = np.exp(draw.uniform(np.log(100), np.log(WORDS), (size, DRAWN))).astype(np.int64)
        third = len(range(0, DRAWN, 3))
        ranks[:, ::3] = np.take_along_axis(self._shared[centre], draw.integers(0, SHARED, (size, third)), axis=1)
        ranks.sort(axis=1)
        starting = np.concatenate([np.ones((size, 1), bool), ranks[:, 1:] != ranks[:, :-1]], axis=1)
        words = np.flatnonzero(starting)
        counts = np.diff(np.append(words, starting.size)).astype(np.float32) * 1.5
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(starting.sum(axis=1))])
        ids = (ranks.ravel()[words] * _ID_STEP).astype(np.uint32)
        return Chunk(first, vectors, starts, ids, counts, np.full(size, DRAWN * 1.5, np.float32))

    def query(self, number: int) -> tuple[Vector, LexicalQuery]:
        """A question near to one of the papers."""
        draw = np.random.default_rng([SEED, number, 1])
        source = int(draw.integers(self.papers))
        chunk = self.chunk(source // CHUNK)
        place = source % CHUNK
        vector = chunk.vectors[place] + _NOISE * draw.standard_normal(DIMENSION, dtype=np.float32)
        terms, _ = chunk.bag(place)
        chosen = terms.ids[np.sort(draw.permutation(len(terms))[:QUERY_TERMS])]
        weights = np.full(len(chosen), 1 / len(chosen), np.float32)
        return vector / np.linalg.norm(vector), LexicalQuery(Terms(chosen, weights), 3.0, 1.2, 0.4, DRAWN * 1.5)


def paper(number: int) -> Paper:
    return Paper(
        id=f"p{number:08}",
        title=f"On lantern number {number} and what it says of tides",
        abstract="word " * 150,
        authors=("Ada Fen", "Bo Rill"),
        venue=f"venue {number % VENUES}",
        published=PartialDate(1990 + number // 7 % YEARS, 1 + number % 12),
    )
