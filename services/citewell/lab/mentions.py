"""Analyses why lexical public profiles help: where a context's name for the cited paper occurs.

A *name* is a word near the marker that looks like one (a capital or a digit after its first letter: BERT, AdamW, GPT-4)
and that few papers use. It is found in the gold paper's own title or abstract, or only in what train papers write where
they cite it, or in neither.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.knowledge import Citations
from citewell.scholarly.contexts import OTHER, TARGET

_WORD = re.compile(r"\w+(?:-\w+)*")
REACH = 8
"""The largest distance of a name from the marker, in words."""
RARE = 0.002
"""The largest share of the papers in which a name may occur."""


class Found(IntEnum):
    """Where the name of the gold paper in the context also occurs."""

    NO_NAME = 0
    NOWHERE = 1
    OWN_TEXT = 2
    ONLY_CONTEXTS = 3


FOUND_LABELS = {
    Found.NO_NAME: "no name near the marker",
    Found.NOWHERE: "name in neither",
    Found.OWN_TEXT: "name in title or abstract",
    Found.ONLY_CONTEXTS: "name only in citing contexts",
}


@dataclass(frozen=True, slots=True, eq=False)
class Mentions:
    """Where each query's name occurs, and the in-degree of its gold paper."""

    found: NDArray[np.int64]
    in_degree: NDArray[np.int64]


def mentions(data: Dataset, known: Citations, queries: Rows) -> Mentions:
    """Looks for the names of every query."""
    own = [_words(f"{t} {a}") for t, a in zip(data.papers.titles, data.papers.abstracts, strict=True)]
    spread: Counter[str] = Counter()
    for words in own:
        spread.update(words)
    said: dict[int, set[str]] = {}
    for row in known.contexts:
        said.setdefault(int(data.contexts.cited[row]), set()).update(_words(data.contexts.texts[int(row)]))
    degree = np.bincount(known.cited, minlength=len(data.papers))
    found = np.zeros(len(queries), np.int64)
    for at, query in enumerate(queries):
        gold = int(data.contexts.cited[query])
        names = {name for name in _names(data.contexts.texts[int(query)]) if spread[name] <= RARE * len(own)}
        if not names:
            found[at] = Found.NO_NAME
        elif names & own[gold]:
            found[at] = Found.OWN_TEXT
        else:
            found[at] = Found.ONLY_CONTEXTS if names & said.get(gold, set()) else Found.NOWHERE
    return Mentions(found, degree[data.contexts.cited[queries]])


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _names(text: str) -> set[str]:
    words = _WORD.findall(text)
    target = next(at for at, word in enumerate(words) if TARGET in word)
    near = words[max(0, target - REACH) : target + REACH + 1]
    return {word.lower() for word in near if _looks_like_a_name(word)}


def _looks_like_a_name(word: str) -> bool:
    if TARGET in word or OTHER in word or len(word) < 2 or not any(letter.isalpha() for letter in word):
        return False
    return any(letter.isupper() or letter.isdigit() for letter in word[1:])
