"""HYBRID with the second phase as a retrieval system, and the features of its candidates.

As in every system, the citations of the query's own paper are left out: of profiles, of bags of words and of the
numbers of citations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citewell.index.second_phase import DEPTH, Candidates, Matches, Numbers, features, standardised
from citewell.index.second_phase_model import SecondPhaseModel
from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.lexical import Matrix
from citewell.lab.systems import by_citing_paper
from citewell.profiler.lexical import query_parts
from citewell.profiler.profiles import Vectors, normalised, profile
from citewell.profiler.query_words import part_weights
from citewell.scholarly.contexts import normalise
from citewell.scholarly.second_phase import SecondPhaseQuery

if TYPE_CHECKING:
    from citewell.lab.experiment import Experiment

ABOVE = 1000.0
"""Added to the scores of the second phase, so that what it did not rank comes after them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """The papers that a query's paper cites, as they are without it."""

    papers: Rows
    bags: Matrix
    profiles: Vectors
    in_degree: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """The candidates of one query in the order of the first phase."""

    papers: Rows
    query: SecondPhaseQuery
    candidates: Candidates


class FirstPhase:
    """HYBRID's best candidates of a query with everything that the second phase reads."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.words, self._profiler = experiment.lexical_profile(), experiment.mapped_profiler
        self._title_terms = np.diff(experiment.lexicon.titles.indptr)
        self.mean_length = self.words.mean_length

    def scores(self, queries: Rows) -> tuple[Vectors, Vectors]:
        """Cosine and lexical score of every paper for every query."""
        return self._profiler.scores(queries), self.words.scores(queries)

    def lists(self, queries: Rows, cosines: Vectors, lexical: Vectors) -> Iterator[Listed]:
        """The candidates of each query of the experiment's task, from what `scores` returned."""
        experiment = self._experiment
        others = {
            citing: self._others(citing) for citing, _ in by_citing_paper(experiment.data, queries, experiment.known)
        }
        windows = experiment.windows(queries)
        for row, eligible in enumerate(experiment.task.eligible(experiment.data, queries)):
            scores = cosines[row] + np.float32(chosen.LEXICAL) * lexical[row]
            scores[~eligible] = -np.inf
            best = experiment.order.top(scores, DEPTH)
            query = int(queries[row])
            citing = int(experiment.data.contexts.citing[query])
            parts = scores[best], cosines[row][best], lexical[row][best]
            yield self._listed(query, best, parts, windows[row], others.get(citing))

    def _others(self, citing: int) -> _Others:
        cited, bags = self.words.counts_without(citing)
        pairs, sums = self._experiment.table.without(citing)
        assert np.array_equal(cited, pairs)
        contents = self._experiment.vectors.papers[cited]
        return _Others(cited, bags, normalised(profile(contents, sums, chosen.PROFILE)), sums.count.astype(np.float64))

    def _listed(
        self,
        query: int,
        papers: Rows,
        scores: tuple[Vectors, Vectors, Vectors],
        window: Vectors,
        others: _Others | None,
    ) -> Listed:
        data, vectors, lexicon = self._experiment.data, self._experiment.vectors, self._experiment.lexicon
        citing = int(data.contexts.citing[query])
        found = query_parts(normalise(data.contexts.texts[query]), normalise(data.papers.titles[citing]))
        ids = np.array(sorted(found), np.uint32)
        columns = np.array([lexicon.column(int(term)) for term in ids], np.int64)
        idf = dict(zip(ids.tolist(), self.words.idf[columns].tolist(), strict=True))
        context, paper = normalised(vectors.contexts[query]), normalised(vectors.papers[citing])
        asked = SecondPhaseQuery(context, paper, part_weights(found, idf, ids), window)

        bags = self.words.counts(papers)
        profiles = self._profiler.profiles[papers]
        in_degree = self._experiment.table.sums.count[papers].astype(np.float64)
        length = np.asarray(bags.sum(axis=1), np.float64).ravel()
        words = _matches(bags, columns, self.words.idf.size)
        if others is not None and len(others.papers):
            at = np.minimum(np.searchsorted(others.papers, papers), len(others.papers) - 1)
            own = np.flatnonzero(others.papers[at] == papers)
            theirs = others.bags[at[own]]
            profiles[own], in_degree[own] = others.profiles[at[own]], others.in_degree[at[own]]
            length[own] = np.asarray(theirs.sum(axis=1)).ravel()
            words = _replaced(words, own, _matches(theirs, columns, self.words.idf.size))
        titles = _matches(lexicon.titles[papers], columns, self.words.idf.size)
        score, cosine, lexical = (part.astype(np.float64) for part in scores)
        sizes = self._title_terms[papers].astype(np.float64)
        return Listed(
            papers, asked, Candidates(score, cosine, lexical, profiles, words, length, titles, sizes, in_degree)
        )


class SecondPhaseSystem:
    """HYBRID, its best candidates ranked again by a model."""

    def __init__(self, experiment: Experiment, model: SecondPhaseModel) -> None:
        self.name = "second-phase"
        self._first, self._model = FirstPhase(experiment), model

    def scores(self, queries: Rows) -> Vectors:
        cosines, lexical = self._first.scores(queries)
        total: Vectors = cosines + np.float32(chosen.LEXICAL) * lexical
        for row, listed in enumerate(self._first.lists(queries, cosines, lexical)):
            if len(listed.papers):
                shares = self._model.shares(listed.query, self._first.mean_length, listed.candidates)
                total[row, listed.papers] = ABOVE + shares.sum(axis=1)
        return total


def listed_features(listed: Listed, mean_length: float, names: tuple[str, ...]) -> Numbers:
    """[candidates, features], standardised over the list."""
    return standardised(features(listed.query, mean_length, listed.candidates), names)


def _matches(bags: Matrix, columns: Rows, width: int) -> Matches:
    """The entries of some bags for the terms in these columns."""
    number = np.full(width, -1, np.int64)
    number[columns] = np.arange(len(columns))
    owner = np.repeat(np.arange(bags.shape[0]), np.diff(bags.indptr))
    terms: NDArray[np.int64] = number[bags.indices]
    found = np.flatnonzero(terms >= 0)
    found = found[np.lexsort((terms[found], owner[found]))]
    return Matches(owner[found], terms[found], bags.data[found].astype(np.float64))


def _replaced(words: Matches, own: Rows, theirs: Matches) -> Matches:
    """The entries with those of the candidates `own` replaced."""
    kept = ~np.isin(words.candidate, own)
    candidate = np.concatenate([words.candidate[kept], own[theirs.candidate]])
    term = np.concatenate([words.term[kept], theirs.term])
    count = np.concatenate([words.count[kept], theirs.count])
    order = np.lexsort((term, candidate))
    return replace(words, candidate=candidate[order], term=term[order], count=count[order])
