"""Sums of citations from a sorted stream: bounded memory, however often a paper is cited. Pure Python and numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from citewell.profiler.ledger.said_terms import COUNT as SAID_COUNT
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.sums import SUM, VECTOR
from citewell.profiler.ledger.text_terms import COUNT, TERM
from citewell.profiler.lexical import NO_COUNTS, Counts, added
from citewell.profiler.profiles import ProfileSums, pair_mean

PARTS_AT_ONCE = 512
"""Bags of words that are collected before they are added up."""


class _Words:
    """A growing sum of bags of words."""

    def __init__(self) -> None:
        self._parts: list[Counts] = []

    def add(self, counts: Counts) -> None:
        self._parts.append(counts)
        if len(self._parts) == PARTS_AT_ONCE:
            self._parts = [added(self._parts)]

    @property
    def total(self) -> Counts:
        return added(self._parts) if self._parts else NO_COUNTS


def summed(rows: Iterable[Mapping[str, Any]], dimension: int) -> Iterator[dict[str, Any]]:
    """The rows of year_sums and said_terms of each (cited, year), and of each paper over all its years.

    Each input row is a text of a citation: cited, year, citing, whether it is the citing paper's `content`, vector, and
    for a context its terms and body_counts. Rows must be sorted by cited, year and citing.
    """
    for cited, of_paper in groupby(rows, itemgetter("cited")):
        total, words, years = ProfileSums.zero(dimension), _Words(), 0
        for year, of_year in groupby(of_paper, itemgetter("year")):
            sums, said = _year(of_year, dimension)
            yield _row(cited, year, sums, said)
            total, years = total + sums, years + 1
            words.add(said)
        # The ledger stores a total of the sums only for papers of several years, and one of the words for every paper.
        yield _row(cited, EVERY_YEAR, total if years > 1 else None, words.total)


def _year(rows: Iterable[Mapping[str, Any]], dimension: int) -> tuple[ProfileSums, Counts]:
    contexts, contents = np.zeros(dimension, np.int64), np.zeros(dimension, np.int64)
    count, words = 0, _Words()
    for _, pair in groupby(rows, itemgetter("citing")):
        said = []
        for row in pair:
            vector = np.frombuffer(row["vector"], VECTOR).astype(np.int64)
            if row["content"]:
                contents += vector
                count += 1
            else:
                said.append(vector)
                words.add(
                    Counts(np.frombuffer(row["terms"], TERM), np.frombuffer(row["body_counts"], COUNT).astype(np.int64))
                )
        if said:
            contexts += pair_mean(np.stack(said))
    return ProfileSums(contexts, contents, np.asarray(count, np.int64)), words.total


def _row(cited: str, year: int, sums: ProfileSums | None, said: Counts) -> dict[str, Any]:
    return {
        "cited": cited,
        "year": year,
        "contexts": sums.contexts.astype(SUM).tobytes() if sums else None,
        "contents": sums.contents.astype(SUM).tobytes() if sums else None,
        "count": int(sums.count) if sums else None,
        "said_size": len(said),
        "said_terms": said.ids.astype(TERM).tobytes(),
        "said_counts": said.counts.astype(SAID_COUNT).tobytes(),
    }
