"""The lexical public profile: counts and weights of the words of papers and queries, for the services and the lab.

The ledger keeps integer counts by field; the weights of the fields are applied at projection. A query word weighs more
the closer it is to the marker of the missing citation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.lexical import Terms
from citewell.scholarly.second_phase import PARTS
from citewell.scholarly.words import LEXICON, count_terms, is_term, marker_place, term_id, words

Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Bm25:
    """k1 and b of BM25."""

    k1: float = 1.2
    b: float = 0.75


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """The weight of a word of each field in a paper's bag of words."""

    title: float = 3.0
    abstract: float = 1.0
    contexts: float = 0.5


@dataclass(frozen=True, slots=True)
class TermWeights:
    """The weight of a query word. In the context it is floor + (1 - floor)·exp(-distance/reach)."""

    reach: float = 5.0
    floor: float = 0.2
    title: float = 0.5
    abstract: float = 0.0


CHOSEN_BM25 = Bm25(k1=1.2, b=0.4)
CHOSEN_FIELDS = FieldWeights(title=3.0, abstract=1.0, contexts=0.5)
CHOSEN_TERMS = TermWeights(reach=5.0, floor=0.2, title=0.5, abstract=0.0)
CHOSEN_WEIGHT = 3.0
"""The weight of the lexical score; the cosine has weight 1. `citewell.lab.chosen` says how the values were chosen."""

MAX_TERMS = 4000


@dataclass(frozen=True, slots=True)
class BagRules:
    """The rules by which a view's bags of words are made."""

    fields: FieldWeights = CHOSEN_FIELDS
    max_terms: int = MAX_TERMS
    """Largest number of terms in a point. The terms with the largest counts are kept."""
    lexicon: str = LEXICON

    @property
    def key(self) -> str:
        """Names the rules that affect document frequencies and lengths. Views with equal keys share statistics."""
        weights = f"{self.fields.title!r} {self.fields.abstract!r} {self.fields.contexts!r}"
        return f"{self.lexicon} {weights}"


CHOSEN_BAG = BagRules()


@dataclass(frozen=True, eq=False, slots=True)
class Counts:
    """Term ids, ascending and distinct, with a signed integer count for each. Negative counts are removals."""

    ids: Ids
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, counted: Mapping[int, int]) -> Counts:
        """Counts from a mapping of term id to count."""
        ids = sorted(counted)
        return cls(np.array(ids, np.uint32), np.array([counted[term] for term in ids], np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Counts)
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.counts, other.counts)
        )

    def __hash__(self) -> int:
        return hash((self.ids.tobytes(), self.counts.tobytes()))


NO_COUNTS = Counts(np.empty(0, np.uint32), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False, slots=True)
class TextTerms:
    """Term frequencies of a text: a paper's title and abstract (`body`), or a context, which has only a `body`."""

    ids: Ids
    title: NDArray[np.int64]
    body: NDArray[np.int64]


def count_text(title: str, body: str) -> TextTerms:
    """The terms of a title and an abstract, or of a context, which has no title."""
    of_title, of_body = count_terms(title), count_terms(body)
    ids = sorted(of_title.keys() | of_body.keys())
    return TextTerms(
        np.array(ids, np.uint32),
        np.array([of_title[term] for term in ids], np.int64),
        np.array([of_body[term] for term in ids], np.int64),
    )


def added(parts: Sequence[Counts]) -> Counts:
    """The sum of counts, without terms whose counts cancel out."""
    if not parts:
        return NO_COUNTS
    ids, counts = _summed(np.concatenate([part.ids for part in parts]), np.concatenate([part.counts for part in parts]))
    return Counts(ids, counts)


def grouped(groups: NDArray[np.int64], ids: Ids, counts: NDArray[np.int64]) -> dict[int, Counts]:
    """The sums by group. Each input row is a (group, term, count). Groups whose counts all cancel out are left out."""
    keys, sums = _summed((groups.astype(np.uint64) << np.uint64(32)) | ids, counts)
    if not len(keys):
        return {}
    numbers, starts = np.unique(keys >> np.uint64(32), return_index=True)
    ends = np.append(starts[1:], len(keys))
    terms = keys.astype(np.uint32)  # the lower 32 bits are the term id
    return {
        int(number): Counts(terms[start:end], sums[start:end])
        for number, start, end in zip(numbers, starts, ends, strict=True)
    }


Key = TypeVar("Key", bound=Hashable)


def added_by_group(parts: Mapping[Key, Sequence[Counts]]) -> dict[Key, Counts]:
    """The sum of the counts of each group, as `added` for each, but computed together: faster for many small groups."""
    every = [part for some in parts.values() for part in some]
    if not every:
        return dict.fromkeys(parts, NO_COUNTS)
    sizes = [sum(len(part) for part in some) for some in parts.values()]
    found = grouped(
        np.repeat(np.arange(len(parts)), sizes),
        np.concatenate([part.ids for part in every]),
        np.concatenate([part.counts for part in every]),
    )
    return {key: found.get(number, NO_COUNTS) for number, key in enumerate(parts)}


def bag(own: TextTerms, said: Counts, rules: BagRules) -> tuple[Terms, float]:
    """A paper's bag of words, truncated as in its point, and the length of the bag before truncation."""
    fields = rules.fields
    ids, values = _summed(
        np.concatenate([own.ids, said.ids]),
        np.concatenate([fields.title * own.title + fields.abstract * own.body, fields.contexts * said.counts]),
    )
    return Terms(ids, values.astype(np.float32)).largest(rules.max_terms), float(values.sum())


def query_terms(context: str, title: str, abstract: str, weights: TermWeights) -> dict[int, float]:
    """The weight of each term of a query, before it is multiplied by the idf."""
    found: dict[int, float] = defaultdict(float)
    text = words(context)
    if text:
        target = marker_place(context)
        for at, word in enumerate(text):
            if is_term(word):
                nearness = math.exp(-abs(at - target) / weights.reach)
                found[term_id(word)] += weights.floor + (1 - weights.floor) * nearness
    for part, weight in ((title, weights.title), (abstract, weights.abstract)):
        for term, count in count_terms(part).items() if weight else ():
            found[term] += weight * count
    return dict(found)


_REACHES = (1.5, 5.0, 15.0)
"""How far the parts "nearest", "near" and "wide" of a query reach from the marker."""


def query_parts(context: str, title: str) -> dict[int, NDArray[np.float64]]:
    """For each term of a query, its weight in each of `second_phase.PARTS`, before it is multiplied by the idf."""
    found: dict[int, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(PARTS)))
    text = words(context)
    if text:
        target = marker_place(context)
        for at, word in enumerate(text):
            if is_term(word):
                distance = abs(at - target)
                found[term_id(word)] += [*(math.exp(-distance / reach) for reach in _REACHES), 1.0, 0.0]
    for term, count in count_terms(title).items():
        found[term][-1] += count
    return dict(found)


def _summed(keys: NDArray[np.generic], values: NDArray[np.generic]) -> tuple[NDArray, NDArray]:  # type: ignore[type-arg]
    """The distinct keys, ascending, with the sum of each one's values. Keys whose sum is zero are left out."""
    if not len(keys):
        return keys, values
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sums = np.add.reduceat(values, starts)
    kept = sums != 0
    return keys[starts][kept], sums[kept]
