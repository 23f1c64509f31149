"""What the second phase reads of the papers in memory, by row, beside their profiles and bags of words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citewell.index.dense import Dense
from citewell.index.points import Point
from citewell.index.postings import Postings
from citewell.index.second_phase import Candidates, Matches, Numbers, title_terms
from citewell.scholarly.lexical import Terms

Rows = NDArray[np.int64]


class SecondPhaseCopy:
    """The words of titles, the lengths of bags and the numbers of citations. `put` needs exclusive access."""

    def __init__(self) -> None:
        self.titles = Postings()
        self._facts = np.zeros((0, 3), np.float32)  # length of the bag, terms of the title, in-degree

    def put(self, rows: Rows, points: Sequence[Point]) -> None:
        """Stores new versions of the papers in these rows. The caller merges the segments of `titles` that are due."""
        titles = [title_terms(point.payload["title"]) for point in points]
        self.titles.put(rows, [(title, float(len(title))) for title in titles])
        if (least := int(rows.max()) + 1) > len(self._facts):
            grown = np.zeros((max(least, 2 * len(self._facts), 1024), 3), np.float32)
            grown[: len(self._facts)] = self._facts
            self._facts = grown
        self._facts[rows] = [
            (point.payload["length"], len(title), point.payload["in_degree"])
            for point, title in zip(points, titles, strict=True)
        ]

    def remove(self, rows: Rows) -> None:
        """Forgets the papers in these rows."""
        self.titles.remove(rows)

    def candidates(
        self, rows: Rows, scores: tuple[Numbers, Numbers, Numbers], terms: Terms, profiles: Dense, bags: Postings
    ) -> Candidates:
        """The papers in these rows as candidates; `scores`: of the first phase, cosine and lexical score."""
        length, title_size, in_degree = self._facts[rows].astype(np.float64).T
        words, titles = bags.counts_of(terms.ids, rows), self.titles.counts_of(terms.ids, rows)
        return Candidates(
            *scores, profiles.rows(rows), Matches(*words), length, Matches(*titles), title_size, in_degree
        )
