"""ILCiteR in the lab: papers ranked by the spans for which train papers cite them, in every variant of its tables.

    train contexts ──▶ spans ──▶ span → {(paper, support)}
    query span ──▶ 50 by BM25-Okapi ∪ 50 by BM25+ ──▶ a ranking of spans ──▶ papers by
                                                       (best rank ↑, support ↓, year ↓)

Nothing is trained. The similarity of meaning is the cosine of MiniLM's vectors of whole contexts, as in the service;
the paper encodes spans by SciBERT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.experiment import Experiment
from citewell.profiler.profiles import normalised
from citewell.recommender.evidence_ranking import LONG, PREFETCH
from citewell.scholarly.contexts import TARGET, normalise
from citewell.scholarly.spans import spans
from citewell.scholarly.words import term_id, words

K1, B, DELTA = 1.5, 0.75, 1.0
"""Constants of BM25. The paper states only δ; the others are the defaults of its library."""
Matrix = Any
"""A scipy sparse matrix; scipy has no types."""

OKAPI, PLUS, MEANING = "BM25-Okapi", "BM25+", "embeddings"
CONDITIONAL = "conditional ensembling"
METHODS: Mapping[str, tuple[str, ...]] = {
    OKAPI: (OKAPI,),
    PLUS: (PLUS,),
    CONDITIONAL: (),
    f"{MEANING} only": (MEANING,),
    f"naive: {OKAPI} + {MEANING}": (OKAPI, MEANING),
    f"naive: {PLUS} + {MEANING}": (PLUS, MEANING),
    f"naive: both BM25 + {MEANING}": (OKAPI, PLUS, MEANING),
}
"""The rows of Tables 4 and 5, and which rankings each takes the mean rank of. The conditional one takes both lexical
rankings for short queries, BM25+ and the embeddings for long ones."""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The candidates of one query, and their place in each ranking, counted from 1."""

    candidates: NDArray[np.int64]
    """Spans, in the order of their texts."""
    ranks: Mapping[str, NDArray[np.float64]]
    long: bool
    """Whether the query is long enough that embeddings are used instead of words alone."""


class SpanStore:
    """The distinct spans of known contexts, the papers cited for each, and their BM25 weights."""

    def __init__(self, experiment: Experiment) -> None:
        self._data, self._vectors = experiment.data, normalised(experiment.vectors.contexts)
        support: Counter[tuple[str, int]] = Counter()
        contexts: dict[str, list[int]] = {}
        for row in experiment.known.contexts.tolist():
            text = normalise(experiment.data.contexts.texts[row])
            for span in dict.fromkeys(each.of(text) for each in spans(text)):
                support[span, int(experiment.data.contexts.cited[row])] += 1
                contexts.setdefault(span, []).append(row)
        self.texts = sorted(contexts)
        number = {span: at for at, span in enumerate(self.texts)}
        self._contexts = [contexts[span] for span in self.texts]
        at, papers = (np.array([key[part] for key in support]) for part in (0, 1))
        shape = len(self.texts), len(experiment.data.papers)
        rows = np.array([number[span] for span in at.tolist()])
        self.support: Matrix = sparse.csr_matrix((list(support.values()), (rows, papers.astype(int))), shape=shape)
        self._weigh()

    def _weigh(self) -> None:
        bags = [Counter(_terms(text)) for text in self.texts]
        self._column = {term: at for at, term in enumerate(sorted({term for bag in bags for term in bag}))}
        lengths = np.array([sum(bag.values()) for bag in bags], np.float64)
        self.mean_length = float(lengths.mean())
        rows = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        columns = np.array([self._column[term] for bag in bags for term in bag])
        counts = np.array([count for bag in bags for count in bag.values()], np.float64)
        holding = np.bincount(columns, minlength=len(self._column))
        idf = np.log((len(bags) - holding + 0.5) / (holding + 0.5) + 1)[columns]
        okapi = idf * counts * (K1 + 1) / (counts + K1 * (1 - B + B * lengths[rows] / self.mean_length))
        shape = len(bags), len(self._column)
        self._okapi, self._plus = (
            sparse.csr_matrix((weights, (rows, columns)), shape=shape) for weights in (okapi, okapi + DELTA * idf)
        )

    @property
    def papers(self) -> NDArray[np.bool_]:
        """Whether each paper is cited for some span."""
        cited: NDArray[np.bool_] = np.asarray(self.support.sum(axis=0)).ravel() > 0
        return cited

    def rank(self, query: int, eligible: NDArray[np.bool_]) -> Rankings:
        """The candidates for a query, among the spans for which an eligible paper is cited."""
        text = query_span(self._data, query)
        asked = np.zeros(len(self._column))
        for term, count in Counter(_terms(text)).items():
            if term in self._column:
                asked[self._column[term]] = count
        admitted = np.asarray(self.support @ eligible.astype(np.int64)).ravel() > 0
        lexical = {
            name: _best(weights @ asked, admitted) for name, weights in ((OKAPI, self._okapi), (PLUS, self._plus))
        }
        candidates = np.unique(np.concatenate(list(lexical.values())))
        likeness = np.array([self._likeness(span, query) for span in candidates.tolist()])
        nearest = candidates[np.argsort(-likeness, kind="stable")]
        ranks = {name: _places(candidates, best) for name, best in {**lexical, MEANING: nearest}.items()}
        return Rankings(candidates, ranks, len(words(text)) >= LONG * self.mean_length)

    def _likeness(self, span: int, query: int) -> float:
        return float((self._vectors[self._contexts[span]] @ self._vectors[query]).max())

    def order(self, rankings: Rankings, method: str, eligible: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The papers that a method recommends, best first."""
        parts = METHODS[method] or ((PLUS, MEANING) if rankings.long else (PLUS, OKAPI))
        total = np.sum([rankings.ranks[part] for part in parts], axis=0)
        # Candidates stand in the order of their texts, which decides between equal ranks.
        found: Matrix = self.support[rankings.candidates[np.argsort(total, kind="stable")]]
        best: dict[int, int] = {}
        for place, paper in zip(*found.nonzero(), strict=True):
            best[int(paper)] = min(int(place), best.get(int(paper), int(place)))
        supported = np.asarray(found.sum(axis=0)).ravel()
        year, ids = self._data.papers.year, self._data.papers.ids
        chosen = [paper for paper in best if eligible[paper]]
        chosen.sort(key=lambda paper: (best[paper], -supported[paper], -int(year[paper]), ids[paper]))
        return np.array(chosen, np.int64)


def query_span(data: Dataset, query: int) -> str:
    """The span of a query's context that contains the missing citation."""
    text = normalise(data.contexts.texts[query])
    return spans(text)[0].of(text)


def evaluate(
    experiment: Experiment, store: SpanStore, queries: Rows, on_progress: Callable[[str, int, int], None]
) -> dict[str, NDArray[np.int64]]:
    """The rank of each query's cited paper by every method, 0 where it is not recommended."""
    found = {method: np.zeros(len(queries), np.int64) for method in METHODS}
    masks = experiment.task.eligible(experiment.data, queries)
    for number, (query, eligible) in enumerate(zip(queries.tolist(), masks, strict=True)):
        rankings = store.rank(query, eligible)
        for method, ranks in found.items():
            place = np.flatnonzero(store.order(rankings, method, eligible) == experiment.data.contexts.cited[query])
            ranks[number] = int(place[0]) + 1 if len(place) else 0
        on_progress("queries ranked by spans", number + 1, len(queries))
    return found


def _terms(text: str) -> Iterable[int]:
    return (term_id(word) for word in words(text) if word != TARGET.lower())


def _best(scores: NDArray[np.float64], admitted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The spans with the highest scores above 0, ties in the order of their texts."""
    inside = np.flatnonzero(admitted & (scores > 0))
    chosen: NDArray[np.int64] = inside[np.argsort(-scores[inside], kind="stable")][:PREFETCH]
    return chosen


def _places(candidates: NDArray[np.int64], best: NDArray[np.int64]) -> NDArray[np.float64]:
    """The place of each candidate in a ranking; candidates that it lacks come last."""
    place = {span: at for at, span in enumerate(best.tolist(), 1)}
    return np.array([place.get(span, len(best) + 1) for span in candidates.tolist()], np.float64)
