"""Our own GLOBAL strategy as a system of the global task, scored as the services score it."""

from __future__ import annotations

import numpy as np

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.lexical import PlainBm25
from citewell.lab.neighbours import Neighbours
from citewell.lab.systems import Profiler
from citewell.profiler.profiles import QueryWeights, Vectors, normalised
from citewell.profiler.query_words import CHOSEN_ALONE
from citewell.recommender.candidates import CITED_WEIGHT, NEAREST

CONTENT_ALONE = QueryWeights(0.0, 1.0)
"""eq. 4 for a draft without a context."""


class GlobalStrategy:
    """Cosine with the public profile, words of title and abstract, and what the nearest papers by content cite."""

    def __init__(self, experiment: Experiment, nearest: int = NEAREST, cited_weight: float = CITED_WEIGHT) -> None:
        """`cited_weight` 0 is the strategy without the neighbours' references."""
        self.name = "global" if cited_weight else "global, no references"
        self._profiler = Profiler(
            "draft", experiment.data, experiment.vectors, experiment.table, chosen.PROFILE, CONTENT_ALONE
        )
        self._words = experiment.lexical_profile(terms=CHOSEN_ALONE, alone=True)
        self._neighbours = Neighbours(experiment)
        self._content = normalised(experiment.vectors.papers)
        self._nearest, self._cited_weight = nearest, cited_weight
        self._context_of = experiment.context_of

    def scores(self, papers: Rows) -> Vectors:
        queries = self._context_of(papers)
        total: Vectors = self._profiler.scores(queries)
        total = total + np.float32(chosen.LEXICAL) * self._words.scores(queries)
        if self._cited_weight:
            likeness = self._content[papers] @ self._content.T
            for row, paper in enumerate(papers.tolist()):
                nearest = self._neighbours.nearest(paper, likeness[row], self._nearest)
                cited, votes = self._neighbours.cited_by(nearest)
                total[row, cited] += np.float32(self._cited_weight / max(len(nearest), 1)) * votes
        return total


class DraftBm25(PlainBm25):
    """Plain BM25; the query is all words of the draft's title and abstract."""

    def scores(self, papers: Rows) -> Vectors:
        texts = self._data.papers
        return np.stack([self._score(f"{texts.titles[row]} {texts.abstracts[row]}") for row in papers.tolist()]).astype(
            np.float32
        )
