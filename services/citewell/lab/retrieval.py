"""Runs a system over a task by the protocol: exact top k and exact rank of the gold paper, ties by paper id."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Dataset, Rows
from citewell.lab.protocol import Task, verify_rankings, verify_task
from citewell.lab.systems import System
from citewell.profiler.profiles import Vectors

DEPTH = 2000
"""Length of a returned list; a gold paper beyond it counts as not returned."""
BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """What a system returned for some queries."""

    queries: Rows
    papers: NDArray[np.int32]
    """[queries, k] rows of the papers, best first; -1 pads."""
    scores: Vectors
    gold: NDArray[np.int64]
    """Rank of the gold paper, 0 where it is not among the first `DEPTH`."""
    bracket: NDArray[np.int64]
    """Rank of the first paper that the query's whole bracket cites; that of the gold paper if no brackets are known."""
    seconds: float
    """Wall time of scoring and ranking, without preparation."""
    cpu_seconds: float
    """CPU time of all threads for the same work; on a shared machine, compare this."""


class IdOrder:
    """Ties are broken by paper id, in the lab as in the service."""

    def __init__(self, data: Dataset) -> None:
        ids = list(data.papers.ids)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self.rank = np.empty(len(ids), np.int64)
        self.rank[order] = np.arange(len(ids))

    def top(self, scores: Vectors, k: int) -> Rows:
        """The columns of the k best scores (-inf is no candidate), best first."""
        k = min(k, int(np.count_nonzero(scores > -np.inf)))
        if k == 0:
            return np.empty(0, np.int64)
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > threshold)
        tied = np.flatnonzero(scores == threshold)
        if len(above) + len(tied) > k:
            tied = tied[np.argsort(self.rank[tied])][: k - len(above)]
        best = np.concatenate([above, tied])
        return best[np.lexsort((self.rank[best], -scores[best]))]

    def rank_of(self, column: int, scores: Vectors) -> int:
        """The rank of one column among all candidates, from 1; 0 if it is not a candidate."""
        score = scores[column]
        if score == -np.inf:
            return 0
        tied = np.flatnonzero(scores == score)
        return 1 + int(np.count_nonzero(scores > score)) + int(np.count_nonzero(self.rank[tied] < self.rank[column]))


def search(
    system: System,
    data: Dataset,
    task: Task,
    k: int,
    order: IdOrder,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    block: int = BLOCK,
    brackets: Brackets | None = None,
) -> Ranking:
    """The verified ranking of every query of the task."""
    verify_task(data, task)
    queries = task.queries
    papers = np.full((len(queries), k), -1, np.int32)
    scores = np.zeros((len(queries), k), np.float32)
    gold, bracket = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    seconds = cpu_seconds = 0.0
    for start in range(0, len(queries), block):
        began, cpu_began = time.perf_counter(), time.process_time()
        asked = queries[start : start + block]
        for row, masked in enumerate(eligible_scores(system, data, task, asked), start=start):
            best = order.top(masked, k)
            papers[row, : len(best)] = best
            scores[row, : len(best)] = masked[best]
            rank = order.rank_of(int(data.contexts.cited[queries[row]]), masked)
            gold[row] = rank if rank <= DEPTH else 0
            others = brackets.answers(int(queries[row])) if brackets else ()
            first = min([rank, *filter(None, (order.rank_of(int(paper), masked) for paper in others))])
            bracket[row] = first if first <= DEPTH else 0
        seconds += time.perf_counter() - began
        cpu_seconds += time.process_time() - cpu_began
        on_progress(min(start + block, len(queries)), len(queries))
    verify_rankings(data, task, papers)
    return Ranking(queries, papers, scores, gold, bracket, seconds, cpu_seconds)


def eligible_scores(system: System, data: Dataset, task: Task, queries: Rows) -> Iterator[Vectors]:
    """The scores of each query; -inf for papers that are not candidates."""
    for scores, eligible in zip(system.scores(queries), task.eligible(data, queries), strict=True):
        scores[~eligible] = -np.inf
        yield scores
