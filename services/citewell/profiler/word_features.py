"""What a query's text shows of each of its words: where the word stands from the marker, and how it is written.

The learned weights of words (`term_weights`) read these features. They need no statistics of a corpus.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.contexts import OTHER
from citewell.scholarly.words import Word, located_words, marker_place, term_id

FEATURES = {
    "weight": "the logarithm of the weight that `TermWeights` gives it",
    "distance": "the logarithm of one more than its distance from the marker, in words",
    "near": "exp(-distance/5)",
    "wide": "exp(-distance/15)",
    "before": "exp(-distance/5) if it stands before the marker",
    "behind": "1 if it is the first word behind the marker",
    "sentence": "1 if it stands in the marker's sentence",
    "clause": "1 if no comma, bracket, colon or semicolon stands between it and the marker",
    "citations": "how many other citations stand between it and the marker, at most 3",
    "repeated": "the logarithm of how often the context has it",
    "titled": "1 if the title of the draft has it",
    "outside": "1 if the context does not have it",
    "capital": "1 if it has a capital first letter, other than at the start of a sentence",
    "capitals": "1 if it has capitals behind the first letter",
    "hyphen": "1 if it is part of a hyphenated word",
    "length": "the logarithm of its number of letters",
    "short": "1 if it has at most three letters",
}
"""Every feature. A word that the context repeats is described by its occurrence nearest to the marker."""

_SENTENCE_END = re.compile(r"[.?!](?=\s+[A-Z(]|\s*$)")
_CLAUSE_END = re.compile(r"[,;:()\[\]]")
_OTHER = re.compile(OTHER)
_MOST_CITATIONS = 3
_SHORT = 3
_LEAST_WEIGHT = 1e-9


@dataclass(slots=True)
class _Seen:
    """What the context shows of a word."""

    distance: int
    features: dict[str, float]
    count: int = 0
    written: set[str] = field(default_factory=set)
    """Which of the features capital, capitals and hyphen some occurrence has."""


def word_features(context: str, title: str, weights: Mapping[int, float]) -> NDArray[np.float64]:
    """[terms, features] of the terms in `weights`, by ascending id. The texts are normalised, the context has a marker.

    `weights` are the terms' weights before their idf; a term of the abstract alone is in neither text.
    """
    seen, titled = _of_context(context), {term_id(word.normal): len(word.normal) for word in located_words(title)}
    rows = []
    for term in sorted(weights):
        found = {"weight": math.log(max(weights[term], _LEAST_WEIGHT)), "titled": float(term in titled)}
        length = titled.get(term, 0)
        if in_context := seen.get(term):
            found |= in_context.features | dict.fromkeys(in_context.written, 1.0)
            found["repeated"] = math.log(in_context.count)
        else:
            found |= {"outside": 1.0, "length": math.log(max(length, 1)), "short": float(0 < length <= _SHORT)}
        rows.append([found.get(name, 0.0) for name in FEATURES])
    return np.array(rows, np.float64).reshape(len(rows), len(FEATURES))


def _of_context(context: str) -> dict[int, _Seen]:
    """The words of a context by term."""
    found = located_words(context)
    target = marker_place(context)
    marker = found[target].offset
    sentences = [match.end() for match in _SENTENCE_END.finditer(context)]
    clauses = [match.start() for match in _CLAUSE_END.finditer(context)]
    citations = [match.start() for match in _OTHER.finditer(context)]
    seen: dict[int, _Seen] = {}
    for at, word in enumerate(found):
        if word.is_target:
            continue
        term, distance = term_id(word.normal), abs(at - target)
        known = seen.get(term)
        if known is None or distance < known.distance:
            first, last = sorted((word.offset, marker))
            near = math.exp(-distance / 5)
            features = {
                "distance": math.log1p(distance),
                "near": near,
                "wide": math.exp(-distance / 15),
                "before": near if at < target else 0.0,
                "behind": float(at == target + 1),
                "sentence": float(bisect_right(sentences, first) == bisect_right(sentences, last)),
                "clause": float(bisect_right(clauses, first) == bisect_left(clauses, last)),
                "citations": float(min(bisect_left(citations, last) - bisect_right(citations, first), _MOST_CITATIONS)),
                "length": math.log(len(word.normal)),
                "short": float(len(word.normal) <= _SHORT),
            }
            known = seen[term] = _Seen(distance, features, *((known.count, known.written) if known else ()))
        known.count += 1
        known.written |= _written(context, word, sentences)
    return seen


def _written(context: str, word: Word, sentences: list[int]) -> set[str]:
    """Which of the features of spelling an occurrence has."""
    end = word.offset + word.length
    text = context[word.offset : end]
    ended = sentences[before - 1] if (before := bisect_right(sentences, word.offset)) else 0
    starts = word.offset == 0 or (before > 0 and word.offset - ended <= 2)
    shown = {
        "capital": text[0].isupper() and not starts,
        "capitals": any(letter.isupper() for letter in text[1:]),
        "hyphen": "-" in (context[word.offset - 1 : word.offset], context[end : end + 1]),
    }
    return {name for name, holds in shown.items() if holds}
