"""Retrieval systems behind one interface: the exact score of every paper for every query.

A system scores; `retrieval` selects the candidates. All systems ignore the citations made by the query's own paper. In
evaluation no such citation is known anyway (`protocol`); for train queries this is the leave-one-paper-out that
training data for a reranker needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.knowledge import Citations, ProfileTable
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import ProfileWeights, QueryWeights, Vectors, normalised, profile, query_vector
from citewell.profiler.query_map import QueryMap


class System(Protocol):
    """Scores papers for queries."""

    name: str

    def scores(self, queries: Rows) -> Vectors:
        """One row per query (a row of the contexts), one column per paper."""


class GlobalSystem(Protocol):
    """Scores papers for whole drafts, without a citation context."""

    name: str

    def scores(self, papers: Rows) -> Vectors:
        """One row per query paper, one column per candidate paper; -inf for what it does not return."""


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
        query_map: QueryMap | None = None,
    ) -> None:
        """With `query_map`, v_q is the learned one instead of eq. 4."""
        self.name = name
        self._data, self._vectors, self._table = data, vectors, table
        self._query_map = query_map
        self._profile_weights, self._query_weights = profile_weights, query_weights
        self.profiles = normalised(profile(vectors.papers, table.sums, profile_weights))

    def query_vectors(self, queries: Rows) -> Vectors:
        """v_q of each query, at unit length."""
        contexts = self._data.contexts
        content = self._vectors.papers[contexts.citing[queries]]
        if self._query_map:
            return normalised(self._query_map.vector(self._vectors.contexts[queries], content))
        return normalised(query_vector(self._vectors.contexts[queries], content, self._query_weights))

    def scores(self, queries: Rows) -> Vectors:
        vectors = self.query_vectors(queries)
        scores: Vectors = vectors @ self.profiles.T
        for citing, rows in by_citing_paper(self._data, queries, self._table.citations):
            cited, sums = self._table.without(citing)
            others = normalised(profile(self._vectors.papers[cited], sums, self._profile_weights))
            scores[np.ix_(rows, cited)] = vectors[rows] @ others.T
        return scores


class SeveralVectors:
    """The best match among a paper's vectors: its content, and each context that cites it, not averaged.

    Without the content it is the nearest known context; 0 for a paper without citations.
    """

    def __init__(
        self,
        name: str,
        data: Dataset,
        vectors: TextVectors,
        known: Citations,
        query_weights: QueryWeights,
        *,
        content: bool,
    ) -> None:
        self.name = name
        self._data, self._known, self._vectors, self._query_weights = data, known, vectors, query_weights
        order = np.argsort(data.contexts.cited[known.contexts], kind="stable")
        rows = known.contexts[order]
        cited = data.contexts.cited[rows]
        self._starts = np.flatnonzero(np.diff(cited, prepend=-1))
        self._cited = cited[self._starts]
        self._citing = data.contexts.citing[rows]
        self._contexts = normalised(vectors.contexts[rows])
        self._content = normalised(vectors.papers) if content else None

    def scores(self, queries: Rows) -> Vectors:
        content = self._vectors.papers[self._data.contexts.citing[queries]]
        vectors = normalised(query_vector(self._vectors.contexts[queries], content, self._query_weights))
        likeness = vectors @ self._contexts.T
        for citing, rows in by_citing_paper(self._data, queries, self._known):
            likeness[np.ix_(rows, np.flatnonzero(self._citing == citing))] = -1  # the lowest possible cosine
        scores: Vectors = np.zeros((len(queries), len(self._data.papers)), np.float32)
        if self._content is not None:
            scores = vectors @ self._content.T
        best = np.maximum.reduceat(likeness, self._starts, axis=1)
        scores[:, self._cited] = np.maximum(scores[:, self._cited], best)
        return scores


class Popularity:
    """log(1 + |N_in|), the popularity term."""

    def __init__(self, name: str, data: Dataset, known: Citations) -> None:
        self.name = name
        self._data, self._known = data, known
        self._count = np.bincount(known.cited, minlength=len(data.papers))

    def scores(self, queries: Rows) -> Vectors:
        scores = np.tile(np.log1p(self._count).astype(np.float32), (len(queries), 1))
        for citing, rows in by_citing_paper(self._data, queries, self._known):
            cited = self._known.cited[self._known.of_paper(citing)]
            scores[np.ix_(rows, cited)] = np.log1p(self._count[cited] - 1)
        return scores


class Fusion:
    """A weighted sum of systems' scores."""

    def __init__(self, name: str, parts: Sequence[tuple[float, System]]) -> None:
        self.name = name
        self._parts = parts

    def scores(self, queries: Rows) -> Vectors:
        total: Vectors = np.zeros((), np.float32)
        for weight, part in self._parts:
            total = total + np.float32(weight) * part.scores(queries)
        return total


def by_citing_paper(data: Dataset, queries: Rows, known: Citations) -> list[tuple[int, Rows]]:
    """The citing papers among the queries whose own citations are known, each with its positions in `queries`."""
    citing = data.contexts.citing[queries]
    return [
        (int(paper), np.flatnonzero(citing == paper)) for paper in np.unique(citing) if len(known.of_paper(int(paper)))
    ]
