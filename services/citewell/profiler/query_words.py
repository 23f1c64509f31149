"""The lexical part of a search: words near the marker and rare words weigh more; the weights sum to 1.

Learned weights say more of what a word near the marker counts (`term_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.profiler.ledger.statistics import Statistics
from citewell.profiler.lexical import (
    CHOSEN_BM25,
    CHOSEN_TERMS,
    CHOSEN_WEIGHT,
    Bm25,
    Ids,
    TermWeights,
    query_parts,
    query_terms,
)
from citewell.profiler.term_weights import LearnedWeights
from citewell.profiler.word_features import word_features
from citewell.scholarly.contexts import normalise
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.limits import MAX_QUERY_TERMS
from citewell.scholarly.queries import Query
from citewell.scholarly.second_phase import PARTS

CHOSEN_ALONE = TermWeights(title=1.0, abstract=0.5)
"""For drafts without a context. On acl's validation drafts MRR is 22.3; with 0.2 it is 20.7, with 1.0 it is 22.7 and
R@20 falls a little."""


@dataclass(frozen=True, slots=True)
class WordWeights:
    """The weights of a query's words and of the lexical score."""

    terms: TermWeights = CHOSEN_TERMS
    alone: TermWeights = CHOSEN_ALONE
    """The weights for a query without a context."""
    bm25: Bm25 = CHOSEN_BM25
    weight: float = CHOSEN_WEIGHT
    """The weight of the lexical score; the cosine has weight 1."""
    learned: LearnedWeights | None = None
    """Learned weights of the words of a query with a context."""


def weigh_words(query: Query, weights: WordWeights, statistics: Statistics) -> LexicalQuery:
    """The lexical part of a search. The weights of the terms sum to 1.

    A text of very many words is searched by those that weigh most.
    """
    ids, values = word_values(query, weights, statistics.idf)
    weighty = values.astype(np.float32) > 0  # too far from the marker, a word may weigh nothing
    terms = Terms(ids[weighty], values[weighty].astype(np.float32)).largest(MAX_QUERY_TERMS)
    return LexicalQuery(terms, weights.weight, weights.bm25.k1, weights.bm25.b, statistics.mean_length)


def word_values(
    query: Query, weights: WordWeights, idf: Callable[[Ids], NDArray[np.floating[Any]]]
) -> tuple[Ids, NDArray[np.float64]]:
    """The terms of a query, ascending, and their weights, which sum to 1. The lab uses it as well."""
    context, title = normalise(query.context), normalise(query.title)
    found = query_terms(context, title, normalise(query.abstract), weights.terms if context else weights.alone)
    ids = np.array(sorted(found), np.uint32)
    values = np.array([found[int(term)] for term in ids], np.float64) * idf(ids)
    values /= max(values.sum(), 1e-9)
    if weights.learned is not None and context and len(ids):
        values = weights.learned.applied(values, word_features(context, title, found))
    return ids, values


def weigh_parts(query: Query, ids: NDArray[np.uint32], statistics: Statistics) -> NDArray[np.float32]:
    """[parts, terms]: what each part of the query says of these terms. Over all words of the query a row sums to 1."""
    found = query_parts(normalise(query.context), normalise(query.title))
    everything = np.array(sorted(found), np.uint32)
    return part_weights(found, dict(zip(everything.tolist(), statistics.idf(everything).tolist(), strict=True)), ids)


def part_weights(
    found: Mapping[int, NDArray[np.float64]], idf: Mapping[int, float], ids: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """The parts' weights of all terms of a query, times their idf, divided by the sum: the columns of `ids`."""
    weighed = {term: weights * idf[term] for term, weights in found.items()}
    nothing = np.zeros(len(PARTS))
    totals = np.maximum(sum(weighed.values(), nothing), 1e-9)
    columns = [weighed.get(term, nothing) / totals for term in ids.tolist()]
    return np.array(columns, np.float32).reshape(len(ids), len(PARTS)).T
