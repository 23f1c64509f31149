"""The papers nearest to a draft and what they cite, as far as the protocol lets it be known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.protocol import Mode, older_than


class Neighbours:
    """Neighbours are candidates, or train papers whose citations are known to the query: in the contemporary mode they
    may be as recent as the draft. They are read, and only recommended where the protocol allows it."""

    def __init__(self, experiment: Experiment) -> None:
        self._data, self._task, self._known = experiment.data, experiment.task, experiment.known
        self._citing = np.zeros(len(experiment.data.papers), np.bool_)
        self._citing[experiment.known.citing] = True
        self._context_of = experiment.context_of
        self._by_day: dict[int, NDArray[np.bool_]] = {}

    def admitted(self, paper: int) -> NDArray[np.bool_]:
        """Which papers may be neighbours of a draft."""
        day = int(self._data.contexts.first_day[self._context_of(np.array([paper]))[0]])
        if day not in self._by_day:
            if self._task.mode is Mode.TRANSDUCTIVE:
                allowed = self._task.candidates | self._citing
            else:
                allowed = self._task.candidates & older_than(self._data.papers.last_day, day)
                if self._task.mode is Mode.INDUCTIVE_CONTEMPORARY:
                    allowed = allowed | self._citing
            self._by_day[day] = allowed
        return self._by_day[day]

    def nearest(self, paper: int, likeness: NDArray[np.float32], count: int) -> Rows:
        """The `count` most alike of the admitted papers, best first; never the draft itself."""
        scores = np.where(self.admitted(paper), likeness, -np.inf)
        scores[paper] = -np.inf
        count = min(count, int(np.isfinite(scores).sum()))
        best = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.int64)
        return best[np.argsort(-scores[best], kind="stable")]

    def references(self, paper: int) -> Rows:
        """What a paper is known to cite."""
        return self._known.cited[self._known.of_paper(paper)].astype(np.int64)

    def cited_by(self, papers: Rows) -> tuple[Rows, NDArray[np.float32]]:
        """The papers that some of these cite, and how many of them do."""
        every = [self.references(int(paper)) for paper in papers]
        cited, votes = np.unique(np.concatenate([*every, np.empty(0, np.int64)]), return_counts=True)
        return cited, votes.astype(np.float32)
