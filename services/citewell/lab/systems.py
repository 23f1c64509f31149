"""Retrieval systems behind one interface: every paper's score for every query, exactly.

A system scores; `retrieval` decides who is a candidate. One rule holds for all: what a query's own paper says of others
never helps to answer the query. In evaluation no such citation is known anyway (`protocol`); for train queries this is
the leave-one-paper-out that training data for a reranker needs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.knowledge import Citations, ProfileTable
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import ProfileWeights, QueryWeights, Vectors, normalised, profile, query_vector


class System(Protocol):
    """Something that scores papers for queries."""

    name: str

    def scores(self, queries: Rows) -> Vectors:
        """One row a query (a row of the contexts), one column a paper."""


class Profiler:
    """eq. 3–5. With α = β = 0 it is the ablation: content only."""

    def __init__(
        self,
        name: str,
        data: Dataset,
        vectors: TextVectors,
        table: ProfileTable,
        profile_weights: ProfileWeights,
        query_weights: QueryWeights,
    ) -> None:
        self.name = name
        self._data, self._vectors, self._table = data, vectors, table
        self._profile_weights, self._query_weights = profile_weights, query_weights
        self.profiles = normalised(profile(vectors.papers, table.sums, profile_weights))

    def query_vectors(self, queries: Rows) -> Vectors:
        """v_q of each query, at length one."""
        contexts = self._data.contexts
        content = self._vectors.papers[contexts.citing[queries]]
        return normalised(query_vector(self._vectors.contexts[queries], content, self._query_weights))

    def scores(self, queries: Rows) -> Vectors:
        vectors = self.query_vectors(queries)
        scores: Vectors = vectors @ self.profiles.T
        for citing, rows in by_citing_paper(self._data, queries, self._table.citations):
            cited, sums = self._table.without(citing)
            others = normalised(profile(self._vectors.papers[cited], sums, self._profile_weights))
            scores[np.ix_(rows, cited)] = vectors[rows] @ others.T
        return scores


def by_citing_paper(data: Dataset, queries: Rows, known: Citations) -> list[tuple[int, Rows]]:
    """The citing papers among the queries whose own citations are known, each with its positions in `queries`."""
    citing = data.contexts.citing[queries]
    return [
        (int(paper), np.flatnonzero(citing == paper)) for paper in np.unique(citing) if len(known.of_paper(int(paper)))
    ]
