"""The metrics, from the rank of each query's one relevant paper, with intervals and paired tests.

`ranks` everywhere: one integer a query, 1 for the top of the list, 0 where the relevant paper was not returned.
`clusters` everywhere: the citing paper of each query. Contexts of one paper are not independent (they share title,
abstract and habits). Resampling whole citing papers therefore gives wider, correct intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECALL_CUTOFFS = (5, 10, 20, 50, 100, 200, 300, 1000, 2000)
NDCG_CUTOFFS = (5, 10, 20, 50, 300)
METRICS = ("MRR", *(f"R@{k}" for k in RECALL_CUTOFFS), *(f"NDCG@{k}" for k in NDCG_CUTOFFS))
RESAMPLES = 2_000
"""Bootstrap resamples of an interval."""
FLIPS = 20_000
"""Random sign assignments of a paired test; the smallest possible p-value is 1/20,001."""

Ranks = NDArray[np.integer[Any]]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries in per cent, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    queries: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the first system minus mean of the second in points, its 95 % interval, and a two-sided p-value."""

    mean: float
    low: float
    high: float
    p: float
    queries: int


def per_query(metric: str, ranks: Ranks) -> Values:
    """The value of "MRR", "R@k" or "NDCG@k" of each query, between 0 and 1."""
    name, _, cutoff = metric.partition("@")
    found = ranks > 0
    if name == "MRR":
        return np.where(found, 1.0 / np.maximum(ranks, 1), 0.0)
    inside = found & (ranks <= int(cutoff))
    if name == "R":
        return inside.astype(np.float64)
    if name == "NDCG":
        return np.where(inside, 1.0 / np.log2(1.0 + np.maximum(ranks, 1)), 0.0)
    raise ValueError(f"unknown metric {metric!r}; known: MRR, R@k, NDCG@k")


def means(ranks: Ranks, metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """Each metric's mean over the queries, in per cent."""
    return {metric: 100.0 * float(per_query(metric, ranks).mean()) if len(ranks) else 0.0 for metric in metrics}


def estimate(
    metric: str, ranks: Ranks, rng: np.random.Generator, clusters: Ranks | None = None, resamples: int = RESAMPLES
) -> Estimate:
    """The metric's mean with its bootstrap interval."""
    values = per_query(metric, ranks)
    low, high = _interval(values, clusters, rng, resamples)
    return Estimate(100.0 * float(values.mean()), 100.0 * low, 100.0 * high, len(values))


def compare(
    metric: str, first: Ranks, second: Ranks, rng: np.random.Generator, clusters: Ranks | None = None
) -> Difference:
    """The difference of two systems on the same queries: paired bootstrap interval and sign-flip randomisation test.

    If the two systems are exchangeable (the null hypothesis), each cluster's difference has a random sign.
    """
    if len(first) != len(second):
        raise ValueError(f"a paired test needs the same queries: got {len(first)} and {len(second)}")
    differences = per_query(metric, first) - per_query(metric, second)
    low, high = _interval(differences, clusters, rng, RESAMPLES)
    totals, _ = _cluster_totals(differences, clusters)
    totals = totals[totals != 0]
    observed = abs(totals.sum())
    exceeding = 0
    for block in np.array_split(np.arange(FLIPS), 20):
        signs = rng.integers(0, 2, size=(len(block), len(totals)), dtype=np.int8) * 2 - 1
        exceeding += int(np.count_nonzero(np.abs(signs @ totals) >= observed * (1 - 1e-12)))
    p = (exceeding + 1) / (FLIPS + 1)
    return Difference(100.0 * float(differences.mean()), 100.0 * low, 100.0 * high, p, len(differences))


def _cluster_totals(values: Values, clusters: Ranks | None) -> tuple[Values, Values]:
    """Sum and number of queries of each cluster; without clusters, each query is its own cluster."""
    if clusters is None:
        return values, np.ones_like(values)
    _, member = np.unique(clusters, return_inverse=True)
    totals: Values = np.bincount(member, weights=values).astype(np.float64)
    return totals, np.bincount(member).astype(np.float64)


def _interval(values: Values, clusters: Ranks | None, rng: np.random.Generator, resamples: int) -> tuple[float, float]:
    totals, sizes = _cluster_totals(values, clusters)
    drawn = np.empty(resamples)
    for start in range(0, resamples, 100):  # blocks, so that memory stays small with many queries
        stop = min(start + 100, resamples)
        picks = rng.integers(0, len(totals), size=(stop - start, len(totals)))
        drawn[start:stop] = totals[picks].sum(axis=1) / sizes[picks].sum(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)
