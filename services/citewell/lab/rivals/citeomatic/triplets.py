"""Triplets (draft, cited, not cited) out of the train split, with the three kinds of negatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.neighbours import Neighbours
from citewell.lab.reference_lists import reference_lists
from citewell.lab.rivals.citeomatic.networks import MARGINS
from citewell.lab.rivals.citeomatic.texts import Texts

PERCENTILE = 5
RANDOM, NEAREST, SECOND = range(3)
Likeness = Callable[[Rows], NDArray[np.float32]]
"""[drafts, papers]: how near every paper is to some drafts."""


@dataclass(frozen=True, slots=True, eq=False)
class Triplets:
    """One row a triplet."""

    draft: Rows
    right: Rows
    wrong: Rows
    margin: NDArray[np.float32]
    """α of the negative's kind."""
    right_citations: NDArray[np.float32]
    """In-citations, the draft's own not counted."""
    wrong_citations: NDArray[np.float32]


class TripletSource:
    """Draws triplets; the draft's own citations are taken out of all counts."""

    def __init__(self, experiment: Experiment, texts: Texts, least: int, per_draft: int, fetched: int) -> None:
        """`least`: the fewest references of a draft; `fetched`: the neighbours that negatives are chosen among."""
        self._experiment = experiment.of_split("train")
        self._texts, self._per_draft, self._fetched = texts, per_draft, fetched
        self._neighbours = Neighbours(self._experiment)
        self.in_citations = np.bincount(experiment.known.cited, minlength=len(experiment.data.papers))
        self.lists = reference_lists(experiment.data, self._experiment.task, least)
        self.lists = self.lists[self._with_negatives()]
        if not len(self.lists):
            raise ValueError(
                f"no train paper of {experiment.data.name} cites {least} candidates: nothing to learn from"
            )
        self._cited: list[Rows] = [self._neighbours.references(int(paper)) for paper in self.lists.papers]
        self._eligible = self._allowed()
        self._least_alike = [
            float(np.percentile(texts.jaccard(int(paper), cited), PERCENTILE))
            for paper, cited in zip(self.lists.papers, self.lists.cited, strict=True)
        ]
        self._second = [self._cited_by_cited(at) for at in range(len(self.lists))]
        self.nearest: list[Rows] = [np.empty(0, np.int64)] * len(self.lists)

    def _with_negatives(self) -> Rows:
        """The drafts for which there is a candidate that they do not cite."""
        counts = [int(mask.sum()) for mask in self._allowed()]
        return np.flatnonzero([count > len(cited) + 1 for count, cited in zip(counts, self.lists.cited, strict=True)])

    def _allowed(self) -> list[NDArray[np.bool_]]:
        task = replace(self._experiment.task, queries=self.lists.queries)
        return list(task.eligible(self._experiment.data, self.lists.queries))

    def mine(self, likeness: Likeness) -> None:
        """Fetches the neighbours of every draft anew; keeps those worded less like it than its references."""
        for start in range(0, len(self.lists), 64):
            block = range(start, min(start + 64, len(self.lists)))
            for at, row in zip(block, likeness(self.lists.papers[list(block)]), strict=True):
                paper = int(self.lists.papers[at])
                scores = np.where(self._eligible[at], row, -np.inf)
                scores[paper] = -np.inf
                scores[self._cited[at]] = -np.inf
                count = min(self._fetched, int(np.isfinite(scores).sum()))
                near = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, np.int64)
                unlike = self._texts.jaccard(paper, near) < self._least_alike[at] if count else np.empty(0, np.bool_)
                self.nearest[at] = near[unlike]

    def draw(self, drafts: Rows, rng: np.random.Generator) -> Triplets:
        """`per_draft` triplets of each of some drafts (numbers in `lists`), the kinds of negatives in turn."""
        rows: list[tuple[int, int, int, float]] = []
        for at in drafts.tolist():
            paper, cited = int(self.lists.papers[at]), self.lists.cited[at]
            second = self._second[at]
            for number, right in enumerate(rng.choice(cited, self._per_draft).tolist()):
                kind, wrong = self._negative(at, (number + int(rng.integers(3))) % 3, second, rng)
                rows.append((paper, right, wrong, MARGINS[kind]))
        drafts, rights, wrongs = (np.array([row[column] for row in rows], np.int64) for column in range(3))
        return Triplets(
            drafts,
            rights,
            wrongs,
            np.array([row[3] for row in rows], np.float32),
            (self.in_citations[rights] - 1).astype(np.float32),
            self.in_citations[wrongs].astype(np.float32),
        )

    def _cited_by_cited(self, at: int) -> Rows:
        """What the draft's references cite, and it does not."""
        second, _ = self._neighbours.cited_by(self.lists.cited[at])
        second = second[self._eligible[at][second]]
        return np.setdiff1d(second, np.append(self._cited[at], self.lists.papers[at]))

    def _negative(self, at: int, kind: int, second: Rows, rng: np.random.Generator) -> tuple[int, int]:
        """A negative of the kind, or a random one where there is none of it."""
        pool = {RANDOM: second[:0], NEAREST: self.nearest[at], SECOND: second}[kind]
        if len(pool):
            return kind, int(rng.choice(pool))
        eligible = self._eligible[at]
        cited = set(self._cited[at].tolist()) | {int(self.lists.papers[at])}
        while True:
            wrong = int(rng.integers(len(eligible)))
            if eligible[wrong] and wrong not in cited:
                return RANDOM, wrong
