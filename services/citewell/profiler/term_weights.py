"""Learned weights of a query's words: a factor for each word, from what the text shows of it (`word_features`).

    factor = exp(Σ weight · feature)
    weights of the words = kept · today's, which sum to 1 + (1 - kept) · (today's · factor), which sum to 1

Only queries change: bags of words and the index stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.profiler.word_features import FEATURES

VERSION = 1
PACKAGED = "packaged"
OFF = "none"
PACKAGED_FILE = Path(__file__).parent / "term_weights.json"
LARGEST = 6.0
"""The logarithm of a factor is clipped here."""

Numbers = NDArray[np.float64]


class BadTermWeights(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedWeights:
    """The weights of the features."""

    digest: str
    """Changes with the weights; part of an answer's settings hash."""
    weights: Numbers = field(repr=False)
    """[features], in the order of `FEATURES`."""
    kept: float = field(repr=False)
    """Share of the weight that the words keep from `TermWeights`."""

    def applied(self, values: Numbers, features: Numbers) -> Numbers:
        """The words' weights, from those that they have without learning, which sum to 1."""
        factors = np.exp(np.clip(features @ self.weights, -LARGEST, LARGEST))
        learned = values * factors
        mixed: Numbers = self.kept * values + (1 - self.kept) * learned / max(float(learned.sum()), 1e-9)
        return mixed


def read_term_weights(text: str | bytes) -> LearnedWeights:
    """The weights in a file that `term_weights_text` made, or BadTermWeights."""
    try:
        told: Any = json.loads(text)
    except ValueError as error:
        raise BadTermWeights(f"it is no JSON: {error}") from None
    if not isinstance(told, Mapping) or told.get("version") != VERSION or not isinstance(told.get("weights"), Mapping):
        raise BadTermWeights(f'it must be an object with "version": {VERSION} and an object "weights"')
    if unknown := [name for name in told["weights"] if name not in FEATURES]:
        raise BadTermWeights(f"features {unknown} are unknown; known are {', '.join(FEATURES)}")
    try:
        weights = np.array([float(told["weights"].get(name, 0.0)) for name in FEATURES])
        kept = float(told["kept"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadTermWeights(f"{type(error).__name__}: {error}") from None
    if not np.isfinite(weights).all() or not 0 <= kept <= 1:
        raise BadTermWeights(f"weights must be finite numbers, and kept, {kept}, from 0 to 1")
    digest = hashlib.sha256(" ".join(FEATURES).encode() + weights.tobytes() + np.float64(kept).tobytes())
    return LearnedWeights(digest.hexdigest()[:16], weights, kept)


def term_weights_text(weights: Numbers, kept: float, card: Mapping[str, Any]) -> str:
    """The file of learned weights; `card` tells people how they were made."""
    named = dict(zip(FEATURES, np.round(weights, 6).tolist(), strict=True))
    return json.dumps({"version": VERSION, "card": dict(card), "kept": kept, "weights": named}, indent=1) + "\n"


def find_term_weights(setting: str) -> LearnedWeights | None:
    """The weights of a setting: "packaged", "none", or a file. Raises OSError or BadTermWeights."""
    if setting == OFF:
        return None
    path = PACKAGED_FILE if setting == PACKAGED else Path(setting)
    return read_term_weights(path.read_bytes())
