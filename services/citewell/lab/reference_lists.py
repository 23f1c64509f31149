"""The global task: whole reference lists as answers, the metrics of Citeomatic's tables, and how systems are run.

A query is a paper with its title and abstract; its answers are all candidates that it cites. The protocol is that of
the local task: one context of each query paper stands for it in the checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.experiment import Experiment
from citewell.lab.metrics import Values
from citewell.lab.protocol import Task, verify_rankings, verify_task
from citewell.lab.systems import GlobalSystem

DEPTH = 100
"""Length of a returned list; an answer beyond it counts as not returned."""
SHOWN = 20
BLOCK = 64


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceLists:
    """The query papers of a task with what they cite."""

    papers: Rows
    """Ascending."""
    queries: Rows
    """A context of each paper: it says which papers are candidates. Its text is not read."""
    cited: tuple[Rows, ...]
    """The candidates that each paper cites, ascending."""

    def __len__(self) -> int:
        return len(self.papers)

    def __getitem__(self, rows: Rows) -> ReferenceLists:
        return ReferenceLists(self.papers[rows], self.queries[rows], tuple(self.cited[row] for row in rows.tolist()))


def reference_lists(data: Dataset, task: Task, least: int = 1) -> ReferenceLists:
    """The papers of a task that cite at least so many candidates."""
    citing, cited = data.contexts.citing[task.queries], data.contexts.cited[task.queries]
    order = np.lexsort((task.queries, cited, citing))
    papers, starts = np.unique(citing[order], return_index=True)
    lists = [np.unique(part).astype(np.int64) for part in np.split(cited[order], starts[1:])] if len(papers) else []
    kept = [at for at, one in enumerate(lists) if len(one) >= least]
    return ReferenceLists(
        papers[kept].astype(np.int64), task.queries[order[starts[kept]]], tuple(lists[at] for at in kept)
    )


def sampled_lists(lists: ReferenceLists, count: int, seed: int) -> ReferenceLists:
    """At most `count` of the lists, drawn once by the seed."""
    if len(lists) <= count:
        return lists
    return lists[np.sort(np.random.default_rng(seed).choice(len(lists), count, replace=False))]


@dataclass(frozen=True, slots=True, eq=False)
class GlobalRanking:
    """What a system returned for some reference lists."""

    lists: ReferenceLists
    papers: NDArray[np.int32]
    """[queries, DEPTH] rows of the papers, best first; -1 pads."""
    cpu_seconds: float
    """CPU time of all threads for scoring and ranking; preparation is not included."""

    @property
    def hits(self) -> NDArray[np.bool_]:
        """[queries, DEPTH]: whether each returned paper is cited."""
        return np.array([np.isin(row, cited) for row, cited in zip(self.papers, self.lists.cited, strict=True)])

    def values(self) -> dict[str, Values]:
        """Per query: P@20, R@20 and MRR (of the first answer), between 0 and 1."""
        hits = self.hits
        found = hits[:, :SHOWN].sum(axis=1)
        sizes = np.array([len(cited) for cited in self.lists.cited])
        first = np.where(hits.any(axis=1), 1.0 / (1 + hits.argmax(axis=1)), 0.0)
        return {f"P@{SHOWN}": found / SHOWN, f"R@{SHOWN}": found / sizes, "MRR": first}


def rank(
    system: GlobalSystem,
    experiment: Experiment,
    lists: ReferenceLists,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    depth: int = DEPTH,
) -> GlobalRanking:
    """The verified ranking of every query paper."""
    data, task = experiment.data, replace(experiment.task, queries=lists.queries)
    verify_task(data, task)
    papers = np.full((len(lists), depth), -1, np.int32)
    began = time.process_time()
    for start in range(0, len(lists), BLOCK):
        asked = slice(start, start + BLOCK)
        eligible = task.eligible(data, lists.queries[asked])
        for row, (scores, allowed) in enumerate(zip(system.scores(lists.papers[asked]), eligible, strict=True), start):
            best = experiment.order.top(np.where(allowed, scores, -np.inf), depth)
            papers[row, : len(best)] = best
        on_progress(min(start + BLOCK, len(lists)), len(lists))
    seconds = time.process_time() - began
    verify_rankings(data, task, papers)
    return GlobalRanking(lists, papers, seconds)


def f1(means: Mapping[str, float]) -> float:
    """F1@20 as Citeomatic defines it: the harmonic mean of the means of P@20 and R@20."""
    precision, recall = means[f"P@{SHOWN}"], means[f"R@{SHOWN}"]
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def global_figures(values: Mapping[str, Values], seed: int, resamples: int = 2000) -> dict[str, dict[str, float]]:
    """F1@20, P@20, R@20 and MRR in per cent, with 95 % bootstrap intervals over query papers."""
    drawn = _means(values, seed, resamples)
    exact = {name: 100.0 * float(each.mean()) for name, each in values.items()}
    exact[f"F1@{SHOWN}"] = f1(exact)
    return {name: {"mean": mean} | _interval(drawn[name]) for name, mean in exact.items()}


def global_difference(
    first: Mapping[str, Values], second: Mapping[str, Values], seed: int, resamples: int = 2000
) -> dict[str, dict[str, float]]:
    """First minus second in points on the same query papers, with 95 % intervals of a paired bootstrap."""
    of_first, of_second = _means(first, seed, resamples), _means(second, seed, resamples)
    exact = global_figures(first, seed, 1), global_figures(second, seed, 1)
    return {
        name: {"mean": exact[0][name]["mean"] - exact[1][name]["mean"]} | _interval(of_first[name] - of_second[name])
        for name in of_first
    }


def _means(values: Mapping[str, Values], seed: int, resamples: int) -> dict[str, Values]:
    """The means of resampled query papers; the same seed draws the same papers for every system."""
    rng = np.random.default_rng(seed)
    count = len(next(iter(values.values())))
    picks = [rng.integers(0, count, size=count) for _ in range(resamples)]
    drawn = {name: np.array([100.0 * each[pick].mean() for pick in picks]) for name, each in values.items()}
    pairs = zip(drawn[f"P@{SHOWN}"].tolist(), drawn[f"R@{SHOWN}"].tolist(), strict=True)
    drawn[f"F1@{SHOWN}"] = np.array([f1({f"P@{SHOWN}": p, f"R@{SHOWN}": r}) for p, r in pairs])
    return drawn


def _interval(drawn: Values) -> dict[str, float]:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"low": float(low), "high": float(high)}


def shared_ranks(
    ranked: NDArray[np.int32], shares: Callable[[int, int], bool], papers: Rows
) -> list[NDArray[np.int64]]:
    """For each query paper, the ranks (from 1) of the returned papers that share something with it: an author, say."""
    return [
        np.array([at + 1 for at, other in enumerate(row) if other >= 0 and shares(int(paper), int(other))], np.int64)
        for paper, row in zip(papers, ranked.tolist(), strict=True)
    ]
