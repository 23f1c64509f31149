"""Scores how much a sentence looks as if it needs a citation: a logistic regression over hashed words.

The weights are learnt by `citewell train citation-need` from train contexts. Features are binary: hashed words, pairs
of neighbouring words, and a few properties of the sentence. Punctuation and citation marks are no features, because a
sentence that lacks its citation lacks those too.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.contexts import OTHER, TARGET

FEATURES = "need/1"
"""Names the rules of `features`. Weights learnt by other rules cannot be used, so a change needs a new name."""
PACKAGED_MODEL = Path(__file__).parent / "citation_need.npz"
MIN_WORDS = 5
MAX_WORDS = 80
"""Sentences with fewer or more words are not scored: mostly headings, or formulas and lists read as one sentence."""

_MARKERS = re.compile(rf"\b(?:{TARGET}|{OTHER})\b")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+(?:[.,]\d+)*")
_OWN_WORDS = "we our us ours i my this paper section table figure fig tab eq equation appendix theorem"
_OTHERS_WORDS = "et al work works method methods approach approaches model models study studies"
_OWN_WORK, _OTHERS_WORK = frozenset(_OWN_WORDS.split()), frozenset(_OTHERS_WORDS.split())


@dataclass(frozen=True, eq=False, slots=True)
class NeedModel:
    """Weights, and the least score at which a sentence is suggested."""

    weights: NDArray[np.float32]
    bias: float
    threshold: float

    def score(self, sentence: str) -> float:
        """How likely the sentence needs a citation, 0 to 1; 0 where it is too short or too long to tell."""
        found = features(sentence, len(self.weights))
        if not len(found):
            return 0.0
        return float(1.0 / (1.0 + np.exp(-(self.weights[found].sum() + self.bias))))


def features(sentence: str, buckets: int) -> NDArray[np.int64]:
    """The buckets of a sentence's features, ascending; empty where it has too few or too many words."""
    text = _MARKERS.sub(" ", sentence)
    found = _WORD.findall(text)
    if not MIN_WORDS <= len(found) <= MAX_WORDS:
        return np.empty(0, np.int64)
    words = ["0" if word[0].isdigit() else word.lower() for word in found]
    names = {f"1 {word}" for word in words}
    names |= {f"2 {first} {second}" for first, second in pairwise(words)}
    names |= {f"start {words[0]}", f"start {words[0]} {words[1]}", f"length {len(words) // 6}"}
    capitals = sum(word[0].isupper() for word in found[1:])
    names |= {
        f"capitals {min(capitals, 5)}",
        f"acronyms {min(sum(_is_name(word) for word in found), 4)}",
        f"numbers {min(words.count('0'), 3)}",
        f"own {min(sum(word in _OWN_WORK for word in words), 3)}",
        f"others {min(sum(word in _OTHERS_WORK for word in words), 3)}",
    }
    return np.unique(np.fromiter((zlib.crc32(name.encode()) % buckets for name in names), np.int64, len(names)))


def _is_name(word: str) -> bool:
    """Whether a word has capitals inside, like names of methods and data sets."""
    return any(letter.isupper() for letter in word[1:])


@lru_cache(maxsize=2)
def read_need_model(path: Path = PACKAGED_MODEL) -> NeedModel:
    """The model of a file that `citewell train citation-need` wrote; ValueError if it is none for this version."""
    with np.load(path, allow_pickle=False) as stored:
        rules = str(stored["features"])
        if rules != FEATURES:
            raise ValueError(f"{path.name} has weights for features {rules}; this version computes {FEATURES}")
        scale: Any = stored["scale"]
        weights = stored["weights"].astype(np.float32) * np.float32(scale)
        return NeedModel(weights, float(stored["bias"]), float(stored["threshold"]))
