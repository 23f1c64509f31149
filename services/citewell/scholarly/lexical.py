"""The lexical score of a paper: BM25 of its bag of words for a weighted query. All services and the lab use it.

    score = Σ weight(term) · count / (count + k1·(1 - b + b·length/mean_length))

The query's weights sum to at most 1, so no paper scores above 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Terms:
    """Terms and a number for each. Ids ascend, none occurs twice."""

    ids: NDArray[np.uint32]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Terms:
        """From a mapping of term id to value."""
        ids = sorted(values)
        return cls(np.array(ids, np.uint32), np.array([values[term] for term in ids], np.float32))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Terms)
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.values, other.values)
        )

    def __hash__(self) -> int:
        return hash((self.ids.tobytes(), self.values.tobytes()))

    def largest(self, limit: int) -> Terms:
        """The terms with the largest values, still in the order of ids; of equal values the smallest ids."""
        if len(self) <= limit:
            return self
        if limit <= 0:
            return NO_TERMS
        # Found by partition: a famous paper has 80,000 words, and sorting them would cost more than reading them.
        least = np.partition(self.values, len(self) - limit)[len(self) - limit]
        larger = np.flatnonzero(self.values > least)
        equal = np.flatnonzero(self.values == least)[: limit - len(larger)]
        kept = np.sort(np.concatenate([larger, equal]))
        return Terms(self.ids[kept], self.values[kept])


NO_TERMS = Terms(np.empty(0, np.uint32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class LexicalQuery:
    """How words count in one search: all that a lexical score depends on beside the paper's own counts."""

    terms: Terms
    """A term's weight: its nearness to the marker, or what was learned of it, times its idf; over the query they sum
    to 1."""
    weight: float
    """What the lexical score counts beside the cosine."""
    k1: float
    b: float
    mean_length: float
    """Mean length of a paper's bag of words; 0 = unknown, and every paper counts as one of mean length."""


def saturated(counts: Numbers, lengths: Numbers | float, query: LexicalQuery) -> Numbers:
    """What a count adds to a score per unit of weight, from 0 to 1. `lengths`: of the bags with these counts."""
    return np.asarray(counts / (counts + half_counts(lengths, query)))


def half_counts(lengths: Numbers | float, query: LexicalQuery) -> Any:
    """The count at which a term reaches half of its weight, for papers of these lengths."""
    relative = lengths / query.mean_length if query.mean_length > 0 else 1.0
    return query.k1 * (1 - query.b + query.b * relative)


def contributions(query: LexicalQuery, terms: Terms, length: float) -> Terms:
    """What each term that query and paper share adds to the paper's lexical score."""
    shared, counts = shared_terms(query.terms, terms)
    parts = query.terms.values[shared] * saturated(counts, length, query)
    return Terms(query.terms.ids[shared], parts.astype(np.float32))


def shared_terms(query: Terms, terms: Terms) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The positions of the query's terms that a bag of words has, and their counts in the bag."""
    if not len(terms) or not len(query):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    at = np.minimum(np.searchsorted(terms.ids, query.ids), len(terms) - 1)
    shared = np.flatnonzero(terms.ids[at] == query.ids)
    return shared, terms.values[at[shared]]


def lexical_score(query: LexicalQuery, terms: Terms, length: float) -> float:
    """The lexical score of a paper with this bag of words."""
    return float(contributions(query, terms, length).values.sum(dtype=np.float64))
