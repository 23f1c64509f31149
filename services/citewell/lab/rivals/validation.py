"""A sample of validation queries and papers, by which a retriever in training is judged."""

from __future__ import annotations

import numpy as np

from citewell.lab.dataset import Dataset
from citewell.lab.metrics import means
from citewell.lab.protocol import Task
from citewell.lab.sampling import sampled
from citewell.profiler.profiles import Vectors


class ValidationPool:
    """Some queries, and the papers among which they are ranked: drawn candidates and the cited ones."""

    def __init__(self, data: Dataset, task: Task, queries: int, papers: int, seed: int) -> None:
        self._data, self._task = data, task
        self.queries = sampled(task.queries, queries, seed)
        drawn = sampled(np.flatnonzero(task.candidates), papers, seed)
        self.papers = np.union1d(drawn, data.contexts.cited[self.queries])

    def mrr(self, scores: Vectors) -> float:
        """MRR in % by these scores, `[queries, papers]`.

        Of papers with equal scores the cited one ranks last: a model that tells none apart must not look perfect.
        """
        ranks = np.zeros(len(self.queries), np.int64)
        for row, eligible in enumerate(self._task.eligible(self._data, self.queries)):
            gold = int(np.searchsorted(self.papers, self._data.contexts.cited[self.queries[row]]))
            others = eligible[self.papers] & (np.arange(len(self.papers)) != gold)
            ranks[row] = 1 + int(np.count_nonzero(others & ~(scores[row] < scores[row, gold])))
        return means(ranks, ["MRR"])["MRR"]
