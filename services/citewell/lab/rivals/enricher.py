"""SymTax's enricher, as far as the papers at hand describe it: a prefetched list grows by its citation neighbourhood.

profiler-davinci §4 says that the enricher takes the first 100 of the prefetched list and models their relationships in
the citation network; that R@300 rises while the figures at 10 and 50 stay; no more. Assumed here:

- The first 100 keep their places. Neighbours come next, then the rest of the prefetched list.
- The network holds the citations of train papers only, and never those of the query's own paper.
- Neighbours are the papers that the candidates cite (`references`), as in the authors' published code, or those that
  train papers cite together with them (`cocited`), for sets in which no candidate is a train paper (neurips25).
- They are ordered by the first candidate that leads to them (`appearance`, as in that code), or by how many do
  (`votes`).

The taxonomies and the hyperbolic distance of SymTax's reranker are not described and not built.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import sparse

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.systems import System
from citewell.profiler.profiles import Vectors

_STEP = 1e6
"""Parts of the list are this far apart in score, so that no part mixes with the next."""


class Relation(StrEnum):
    """Which papers are neighbours of a candidate."""

    REFERENCES = "references"
    COCITED = "cocited"


class Order(StrEnum):
    """Which neighbours come first."""

    APPEARANCE = "appearance"
    VOTES = "votes"


@dataclass(frozen=True, slots=True)
class EnricherSettings:
    """How a list is enriched."""

    relation: Relation = Relation.REFERENCES
    order: Order = Order.APPEARANCE
    depth: int = 100
    """How many candidates lead to neighbours."""


class Enriched:
    """A retriever whose list is enriched."""

    def __init__(self, name: str, prefetcher: System, experiment: Experiment, settings: EnricherSettings) -> None:
        self.name = name
        self._prefetcher, self._experiment, self._settings = prefetcher, experiment, settings
        known, papers = experiment.known, len(experiment.data.papers)
        ones = np.ones(len(known.citing), np.int32)
        self._cites = sparse.csr_matrix((ones, (known.citing, known.cited)), shape=(papers, papers))
        self._cited_by = self._cites.T.tocsr()

    def scores(self, queries: Rows) -> Vectors:
        experiment, data = self._experiment, self._experiment.data
        found = self._prefetcher.scores(queries)
        for row, eligible in enumerate(experiment.task.eligible(data, queries)):
            own = int(data.contexts.citing[queries[row]])
            first = experiment.order.top(np.where(eligible, found[row], -np.inf), self._settings.depth)
            near = self.neighbours(first, own)
            # Scores of the list's parts: the rest as it was, neighbours above, the first candidates on top.
            found[row, near] = np.float32(_STEP) - np.arange(len(near), dtype=np.float32)
            found[row, first] = np.float32(2 * _STEP) - np.arange(len(first), dtype=np.float32)
        return found

    def neighbours(self, first: Rows, own: int) -> Rows:
        """The neighbours of the first candidates, best first, without those candidates."""
        votes: Counter[int] = Counter()
        for candidate in first.tolist():
            votes.update(self._linked(candidate, own))
        for candidate in first.tolist():
            votes.pop(candidate, None)
        # A counter keeps the order in which its keys came, and sorting keeps it among equals.
        by_votes = self._settings.order is Order.VOTES
        found = sorted(votes, key=lambda paper: -votes[paper]) if by_votes else list(votes)
        return np.array(found, np.int64)

    def _linked(self, candidate: int, own: int) -> list[int]:
        if self._settings.relation is Relation.REFERENCES:
            return [] if candidate == own else _row(self._cites, candidate)
        citing = [paper for paper in _row(self._cited_by, candidate) if paper != own]
        return [cited for paper in citing for cited in _row(self._cites, paper)]


def _row(matrix: sparse.csr_matrix, row: int) -> list[int]:
    columns: list[int] = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
    return columns
