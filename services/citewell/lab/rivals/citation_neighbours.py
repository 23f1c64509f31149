"""SciNCL's triplets: papers near each other in an embedding of the citation graph are alike, far ones are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.knowledge import Citations


@dataclass(frozen=True, slots=True)
class Bands:
    """Ranks of the neighbours of a query, counted from 1, that become its positives and negatives; ends included."""

    positives: tuple[int, int] = (21, 25)
    hard: tuple[int, int] = (3999, 4000)
    """Hard negatives: near enough to be difficult, too far to be positives."""
    easy: int = 3
    """How many negatives are drawn from the papers behind the hard ones."""

    def __post_init__(self) -> None:
        if not 1 <= self.positives[0] <= self.positives[1] < self.hard[0] <= self.hard[1]:
            raise ValueError(f"positives must end before hard negatives begin, got {self.positives} and {self.hard}")
        if self.count != self.hard[1] - self.hard[0] + 1 + self.easy:
            raise ValueError(f"positives and negatives must be equally many, got {self}")

    @property
    def count(self) -> int:
        """Triplets of a query."""
        return self.positives[1] - self.positives[0] + 1


class CitationNeighbours:
    """An embedding of the graph of known citations, and neighbours in it.

    The nodes are papers that train papers cite, and those train papers. Papers under evaluation are none.
    """

    def __init__(self, data: Dataset, known: Citations, dimensions: int, seed: int) -> None:
        barred = np.union1d(data.split_papers["validation"], data.split_papers["test"])
        kept = ~np.isin(known.cited, barred) & ~np.isin(known.citing, barred)
        self.papers: Rows = np.union1d(known.citing[kept], known.cited[kept]).astype(np.int64)
        ends = [np.searchsorted(self.papers, each[kept]) for each in (known.citing, known.cited)]
        self.vectors = embedding(ends[0], ends[1], len(self.papers), dimensions, seed)

    def ranked(self, node: int) -> Rows:
        """All other nodes, the nearest first."""
        nearness = self.vectors @ self.vectors[node]
        nearness[node] = -np.inf
        found: Rows = np.argsort(-nearness, kind="stable")[:-1]
        return found

    def triplets(self, node: int, bands: Bands, rng: np.random.Generator) -> NDArray[np.int64]:
        """`[count, 3]` papers: the query, a positive, a negative."""
        ranked = self.ranked(node)
        if len(ranked) < bands.hard[1] + bands.easy:
            raise ValueError(
                f"the graph has {len(self.papers)} papers, too few for hard negatives up to rank {bands.hard[1]}"
            )
        positives = ranked[bands.positives[0] - 1 : bands.positives[1]]
        hard = ranked[bands.hard[0] - 1 : bands.hard[1]]
        easy = rng.choice(ranked[bands.hard[1] :], bands.easy, replace=False)
        queries = np.full(bands.count, node)
        found: Rows = self.papers[np.stack([queries, positives, np.concatenate([hard, easy])], axis=1)]
        return found


def embedding(citing: Rows, cited: Rows, nodes: int, dimensions: int, seed: int) -> NDArray[np.float32]:
    """Unit vectors of the nodes: the leading eigenvectors of the normalised adjacency, weighted by their eigenvalues.

    Every node is also its own neighbour, so that directly linked papers are near each other, not only those that share
    neighbours.
    """
    ones = np.ones(len(citing), np.float64)
    directed = sparse.coo_array((ones, (citing, cited)), shape=(nodes, nodes)).tocsr()
    linked = ((directed + directed.T + sparse.eye_array(nodes)) > 0).astype(np.float64)
    scale = sparse.diags_array(1 / np.sqrt(linked.sum(axis=1)))
    start = np.random.default_rng(seed).normal(size=nodes)  # scipy's own start is random
    values, vectors = eigsh(scale @ linked @ scale, k=min(dimensions, nodes - 1), which="LA", v0=start, tol=1e-3)
    weighted = vectors * np.maximum(values, 0)
    lengths = np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-12)
    unit: NDArray[np.float32] = (weighted / lengths).astype(np.float32)
    return unit
