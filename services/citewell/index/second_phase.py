"""The second phase of a HYBRID search: a small learned model ranks the best candidates of the first phase again.

    first phase ──▶ the best DEPTH candidates ──▶ features ──▶ standardised over the list ──▶ network ──▶ order

Features read only what a search has at hand: the stored profile and bag of words, the title, the number of citations.
Scores depend on the query and on the list of candidates alone, so every engine that finds the same candidates ranks
them alike. They compare within one list only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.contexts import normalise
from citewell.scholarly.lexical import Terms
from citewell.scholarly.second_phase import PARTS, SecondPhaseQuery
from citewell.scholarly.words import count_terms

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

DEPTH = 1000
"""How many candidates of the first phase are ranked again."""
_LEAST, _MOST = -8.0, 12.0
"""Standardised features are clipped here: a single match in a thousand candidates may lie 30 deviations away."""


_NEAREST = "words right beside the marker"
_NEAR = "words near the marker"
_CONTEXT = "other words of the context"
_TITLE = "words of the citing paper's title"
_IN_TITLE = "words in the paper's own title"
_MEANING = "meaning of its text and of what others say of it"
_WINDOW = "meaning of the words around the marker"
_CITED = "how often it is cited"
_LENGTH = "how much text there is of it"
_FIRST = "rank and score of the first phase"

FEATURES = {
    "cosine": _MEANING,
    "context_cosine": _MEANING,
    "paper_cosine": _MEANING,
    "window_cosine": _WINDOW,
    "lexical": _FIRST,
    "score": _FIRST,
    "rank": _FIRST,
    "in_degree": _CITED,
    "length": _LENGTH,
    "nearest_words": _NEAREST,
    "near_words": _NEAR,
    "wide_words": _CONTEXT,
    "context_words": _CONTEXT,
    "title_words": _TITLE,
    "nearest_present": _NEAREST,
    "nearest_rate": _NEAREST,
    "nearest_log_rate": _NEAREST,
    "nearest_best": _NEAREST,
    "near_present": _NEAR,
    "near_rate": _NEAR,
    "near_log_rate": _NEAR,
    "near_best": _NEAR,
    "context_rate": _CONTEXT,
    "nearest_in_title": _IN_TITLE,
    "near_in_title": _IN_TITLE,
    "context_in_title": _IN_TITLE,
    "title_in_title": _TITLE,
    "title_best": _IN_TITLE,
    "title_in_context": _IN_TITLE,
    "title_covered": _IN_TITLE,
}
"""Every feature, and the group that explanations count it to.

…_words: saturated counts in the bag of words, as in BM25; …_present: whether a word is there; …_rate: its share of the
bag; …_best: the most that one word adds; …_in_title: words that the paper's title has; title_covered: the share of the
paper's title that the query has.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The words that query and candidates share: one entry for each candidate and term, in this order."""

    candidate: Places
    term: Places
    """Position among the terms of the query."""
    count: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What is known of the candidates of one query, in the order of the first phase."""

    score: Numbers
    """The score in the first phase."""
    cosine: Numbers
    lexical: Numbers
    profiles: NDArray[np.float32]
    """[candidates, dimension], of unit length."""
    words: Matches
    """The words of the query in the bag of words."""
    length: Numbers
    """The length of the bag of words."""
    title: Matches
    title_terms: Numbers
    """How many different terms the title has."""
    in_degree: Numbers

    def __len__(self) -> int:
        return len(self.score)


def features(query: SecondPhaseQuery, mean_length: float, candidates: Candidates) -> dict[str, Numbers]:
    """Each feature of the candidates, by name; `FEATURES` says what they mean."""
    found = {
        "cosine": candidates.cosine,
        "context_cosine": _cosines(candidates.profiles, query.context),
        "paper_cosine": _cosines(candidates.profiles, query.paper),
        "window_cosine": _cosines(candidates.profiles, query.window),
        "lexical": candidates.lexical,
        "score": candidates.score,
        "rank": np.log1p(np.arange(len(candidates))),
        "in_degree": np.log1p(candidates.in_degree),
        "length": np.log1p(candidates.length),
    }
    weights = dict(zip(PARTS, query.weights.astype(np.float64), strict=True))
    return found | _in_bags(weights, mean_length, candidates) | _in_titles(weights, candidates)


def _in_bags(weights: Mapping[str, Numbers], mean_length: float, candidates: Candidates) -> dict[str, Numbers]:
    """The features of the words that query and bag share."""
    words, count = candidates.words, len(candidates)
    part = {name: weight[words.term] for name, weight in weights.items()}
    length = candidates.length[words.candidate]
    relative = length / mean_length if mean_length > 0 else np.ones(len(length))
    saturated = words.count / (words.count + 1.2 * (0.6 + 0.4 * relative))
    share = words.count / np.maximum(length, 1e-9)
    rate, log_rate = share / (share + 0.02), np.log1p(share / 0.002)
    sums = {f"{name}_words": part[name] * saturated for name in PARTS} | {"context_rate": part["context"] * rate}
    for name in ("nearest", "near"):
        sums[f"{name}_present"] = part[name]
        sums[f"{name}_rate"] = part[name] * rate
        sums[f"{name}_log_rate"] = part[name] * log_rate
    best = {f"{name}_best": sums[f"{name}_words"] for name in ("nearest", "near")}
    return _by_candidate(np.add, sums, words, count) | _by_candidate(np.maximum, best, words, count)


def _in_titles(weights: Mapping[str, Numbers], candidates: Candidates) -> dict[str, Numbers]:
    """The features of the words that query and title share."""
    title, count = candidates.title, len(candidates)
    size = np.maximum(candidates.title_terms, 1.0)[title.candidate]
    sums = {f"{name}_in_title": weights[name][title.term] for name in ("nearest", "near", "context", "title")}
    sums["title_in_context"] = (sums["context_in_title"] > 0) / size
    sums["title_covered"] = 1.0 / size
    best = {"title_best": sums["near_in_title"]}
    return _by_candidate(np.add, sums, title, count) | _by_candidate(np.maximum, best, title, count)


def _by_candidate(of: np.ufunc, entries: Mapping[str, Numbers], matches: Matches, count: int) -> dict[str, Numbers]:
    """The sum, or the maximum, of each candidate's entries; 0 for those without."""
    made = np.zeros((len(entries), count))
    if len(matches.candidate):
        starts = np.flatnonzero(np.diff(matches.candidate, prepend=-1))
        for row, values in zip(made, entries.values(), strict=True):
            row[matches.candidate[starts]] = of.reduceat(values, starts)
    return dict(zip(entries, made, strict=True))


def title_terms(title: str) -> Terms:
    """The different terms of a paper's title."""
    return Terms.of(dict.fromkeys(count_terms(normalise(title)), 1.0))


def standardised(found: Mapping[str, Numbers], names: tuple[str, ...]) -> Numbers:
    """[candidates, features]: how far each value lies from the mean of the list, in standard deviations."""
    values = np.stack([found[name] for name in names], axis=1)
    values -= values.mean(axis=0)
    deviation = np.sqrt((values * values).mean(axis=0))
    clipped: Numbers = np.clip(values / (deviation + 1e-4), _LEAST, _MOST)
    return clipped


def _cosines(profiles: NDArray[np.float32], vector: NDArray[np.float32]) -> Numbers:
    if not vector.size:
        return np.zeros(len(profiles))
    return np.asarray(profiles @ vector, np.float64)
