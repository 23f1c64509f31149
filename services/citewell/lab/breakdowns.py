"""Metrics by in-degree and age of the gold paper, bracket size and context length; and fairness by group of papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Column, Dataset, Rows
from citewell.lab.knowledge import Citations
from citewell.lab.metrics import means

Labels = NDArray[np.str_]
SHOWN = ("MRR", "R@10", "R@300")
TOP = 10


@dataclass(frozen=True, slots=True, eq=False)
class Breakdown:
    """One way to divide queries into groups."""

    title: str
    groups: tuple[str, ...]
    label: NDArray[np.int64]
    """Group of each query."""

    def rows(self, gold_ranks: NDArray[np.int64]) -> list[tuple[str, int, dict[str, float]]]:
        """(group, queries, metrics) of every group that has queries."""
        sizes = [(group, self.label == number) for number, group in enumerate(self.groups)]
        return [(group, int(mask.sum()), means(gold_ranks[mask], SHOWN)) for group, mask in sizes if mask.any()]


def in_degrees(data: Dataset, known: Citations) -> NDArray[np.int64]:
    """|N_in| of every paper, counting known citations only."""
    return np.bincount(known.cited, minlength=len(data.papers))


def breakdowns(data: Dataset, known: Citations, queries: Rows) -> list[Breakdown]:
    """The breakdowns a report shows."""
    contexts, papers = data.contexts, data.papers
    gold = contexts.cited[queries]
    age = papers.year[contexts.citing[queries]] - papers.year[gold]
    lengths = np.array([len(contexts.texts[int(query)]) for query in queries])
    made = [
        _by_bounds("in-degree of the gold paper", in_degrees(data, known)[gold], (0, 1, 5, 20)),
        _by_bounds("age of the gold paper, years", age, (1, 2, 4, 8)),
        _by_bounds("context length, characters", lengths, (200, 400, 600)),
    ]
    if contexts.group[queries].any():
        made.append(_by_bounds("works in the bracket", contexts.group[queries], (1, 2, 3, 5)))
    if len(contexts.sources) > 1:
        made.append(Breakdown("source of the context", contexts.sources, contexts.source[queries].astype(np.int64)))
    return made


def _by_bounds(title: str, values: Column | NDArray[np.int64], upper: Sequence[int]) -> Breakdown:
    lower = [None, *(bound + 1 for bound in upper)]
    names = [
        f"up to {high}" if low is None and high > 1 else str(high) if low in (None, high) else f"{low}–{high}"
        for low, high in zip(lower, upper, strict=False)
    ]
    names.append(f"over {upper[-1]}")
    return Breakdown(title, tuple(names), np.searchsorted(np.array(upper), values))


@dataclass(frozen=True, slots=True)
class Share:
    """One group of papers: its share of the gold papers and its share of the top 10, in per cent."""

    group: str
    gold: float
    recommended: dict[str, float]


def fairness_by_in_degree(
    data: Dataset, known: Citations, queries: Rows, top: dict[str, NDArray[np.int32]]
) -> list[Share]:
    """Deciles of the cited papers by in-degree, and a group for papers without citations."""
    degree = in_degrees(data, known)
    cited = np.flatnonzero(degree)
    by_degree = cited[np.lexsort((cited, degree[cited]))]
    group = np.zeros(len(data.papers), np.int64)
    group[by_degree] = 1 + np.arange(len(by_degree)) * 10 // max(len(by_degree), 1)
    names = ["cited by none"]
    for decile in range(1, 11):
        inside = degree[group == decile]
        names.append(f"decile {decile} ({inside.min()}–{inside.max()})" if len(inside) else f"decile {decile}")
    return _shares(names, group, data.contexts.cited[queries], top)


def fairness_by_year(data: Dataset, queries: Rows, top: dict[str, NDArray[np.int32]]) -> list[Share]:
    """Publication years of recommended papers beside those of the gold papers."""
    years = data.papers.year
    gold = data.contexts.cited[queries]
    latest = int(years[gold].max())
    bounds = [latest - 20, latest - 10, latest - 5, latest - 4, latest - 3, latest - 2, latest - 1]
    names = [f"to {bounds[0]}", f"{bounds[0] + 1}–{bounds[1]}", f"{bounds[1] + 1}–{bounds[2]}"]
    names += [str(year) for year in range(latest - 4, latest + 1)]
    return _shares(names, np.searchsorted(np.array(bounds), years), gold, top)


def _shares(
    names: Sequence[str], group: NDArray[np.int64], gold: Column, top: dict[str, NDArray[np.int32]]
) -> list[Share]:
    def per_cent(papers: Column) -> NDArray[np.float64]:
        counts = np.bincount(group[papers], minlength=len(names))
        shares: NDArray[np.float64] = 100.0 * counts / max(counts.sum(), 1)
        return shares

    golden = per_cent(gold)
    recommended = {name: per_cent(ranked[:, :TOP][ranked[:, :TOP] >= 0]) for name, ranked in top.items()}
    return [
        Share(group_name, float(golden[at]), {name: float(shares[at]) for name, shares in recommended.items()})
        for at, group_name in enumerate(names)
    ]
