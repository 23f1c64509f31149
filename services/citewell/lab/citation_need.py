"""Trains and measures the scorer of sentences that look as if they need a citation.

The sentences come from citation contexts. One that holds a marker is an example that cites; one without a marker is an
example that does not. Both stand within 300 characters of a citation, so they are harder to tell apart than the
sentences of a whole paper, of which more cite nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.optimize import minimize

from citewell.lab.dataset import Dataset
from citewell.manuscripts.need import FEATURES, features
from citewell.scholarly.contexts import CONTEXT_RADIUS, OTHER, TARGET
from citewell.scholarly.spans import sentences

BUCKETS = 1 << 16
PENALTIES = (3e-4, 1e-3, 3e-3)
"""Ridge penalties that are tried; validation decides."""
LEAST_PRECISION = 0.85
"""The threshold is the lowest one that reaches this precision on validation: a false alarm costs a writer more than a
sentence that is not suggested."""
RESAMPLES = 1000

_MARKER = re.compile(rf"\b(?:{TARGET}|{OTHER})\b")
_LETTERS = re.compile(r"[^\W\d_]+")
# A citation that the set's makers did not mask: the sentence cites, but no marker shows where.
_UNMASKED = re.compile(r"et al\.?,? \(?(?:19|20)\d\d|\((?:19|20)\d\d[a-z]?\)|\[\d")
# Behind these words the marker is a part of the sentence ("as shown in TARGETCIT"). Without it the sentence has a gap
# that no real sentence has, and the model would learn to see gaps.
_WORDS_BEFORE_A_GAP = """
    a an and are as at be between both by cf eg following follow for from ie in into is like of on or per see than that
    the to under using via was were with
"""
_BEFORE_A_GAP = frozenset(_WORDS_BEFORE_A_GAP.split())
_CUT = CONTEXT_RADIUS - 50
"""Contexts with more text on a side were cut there, so that their outer sentences may be fragments."""


@dataclass(frozen=True, eq=False, slots=True)
class Examples:
    """Sentences as features, which of them cite, and the papers they come from."""

    matrix: scipy.sparse.csr_matrix
    cites: NDArray[np.bool_]
    papers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cites)


@dataclass(frozen=True, eq=False, slots=True)
class Trained:
    """Quantised weights, and how they were chosen."""

    weights: NDArray[np.int8]
    scale: float
    bias: float
    penalty: float
    threshold: float

    def scores(self, examples: Examples) -> NDArray[np.float64]:
        """The score of each sentence, as `NeedModel` computes it."""
        logits = examples.matrix @ (self.weights.astype(np.float64) * self.scale) + self.bias
        scores: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-logits))
        return scores

    def write(self, path: Path) -> None:
        """Writes the file that `read_need_model` reads."""
        np.savez_compressed(
            path,
            weights=self.weights,
            scale=np.float64(self.scale),
            bias=np.float64(self.bias),
            threshold=np.float64(self.threshold),
            features=np.array(FEATURES),
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A share in per cent with its 95 % interval over citing papers."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def examples(data: Dataset, split: str) -> Examples:
    """The sentences of a split, each once per citing paper."""
    found: dict[tuple[int, str], tuple[str, bool | None]] = {}
    for row in data.contexts.of_split(split):
        text, paper = data.contexts.texts[int(row)], int(data.contexts.citing[row])
        for sentence in whole_sentences(text):
            key = paper, "".join(_LETTERS.findall(_MARKER.sub("", sentence)))
            known = found.get(key, ("", False))[1]
            told = cites(sentence)
            # The contexts of a paper overlap. If one of them shows a marker, or a doubt, that counts.
            found[key] = sentence, None if None in (known, told) else known or told
    rows, labels, papers = [], [], []
    for (paper, _), (sentence, label) in found.items():
        row_features = features(sentence, BUCKETS)
        if label is not None and len(row_features):
            rows.append(row_features)
            labels.append(label)
            papers.append(paper)
    return Examples(_matrix(rows), np.array(labels, np.bool_), np.array(papers, np.int64))


def whole_sentences(context: str) -> Iterable[str]:
    """The sentences of a context that are not cut off."""
    at = context.find(TARGET)
    every = sentences(context)
    for number, span in enumerate(every):
        text = span.of(context).strip()
        if number == 0 and at > _CUT and not text[:1].isupper():
            continue
        if number == len(every) - 1 and not text.rstrip(")]\"'”’").endswith((".", "!", "?")):
            continue
        yield text


def cites(sentence: str) -> bool | None:
    """Whether a sentence cites; None where it cannot serve as an example."""
    markers = list(_MARKER.finditer(sentence))
    if not markers:
        return None if _UNMASKED.search(sentence) else False
    for marker in markers:
        before = _LETTERS.findall(sentence[: marker.start()])
        if len(before) < 3 or before[-1].lower() in _BEFORE_A_GAP:
            return None
    return True


def train(learn: Examples, validate: Examples) -> Trained:
    """The model whose penalty ranks validation sentences best, with the threshold that validation asks for."""
    trained = max((_fitted(learn, penalty) for penalty in PENALTIES), key=lambda model: area(model, validate))
    threshold = _threshold(trained.scores(validate), validate.cites)
    return Trained(trained.weights, trained.scale, trained.bias, trained.penalty, threshold)


def area(model: Trained, examples: Examples) -> float:
    """The probability that a sentence that cites scores above one that does not."""
    order = np.argsort(model.scores(examples), kind="stable")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order))
    positives = int(examples.cites.sum())
    return float((ranks[examples.cites].mean() - (positives - 1) / 2) / (len(order) - positives))


def precision_and_recall(
    chosen: NDArray[np.bool_], examples: Examples, rng: np.random.Generator
) -> tuple[Figure | None, Figure]:
    """Precision (None where nothing is chosen) and recall, with intervals by resampling citing papers."""
    right = chosen & examples.cites
    return _share(right, chosen, examples.papers, rng), _share(right, examples.cites, examples.papers, rng) or Figure(
        0, 0, 0
    )


def _fitted(learn: Examples, penalty: float) -> Trained:
    labels = learn.cites.astype(np.float64)

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, bias = parameters[:-1], parameters[-1]
        logits = learn.matrix @ weights + bias
        error = (1.0 / (1.0 + np.exp(-logits)) - labels) / len(labels)
        value = np.mean(np.logaddexp(0, logits) - labels * logits) + penalty / 2 * (weights @ weights)
        return float(value), np.append(learn.matrix.T @ error + penalty * weights, error.sum())

    fitted = minimize(loss, np.zeros(BUCKETS + 1), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    weights = fitted.x[:-1]
    scale = float(np.abs(weights).max()) / 127
    return Trained(np.round(weights / scale).astype(np.int8), scale, float(fitted.x[-1]), penalty, 0.5)


def _threshold(scores: NDArray[np.float64], cites: NDArray[np.bool_]) -> float:
    candidates = np.arange(0.05, 0.96, 0.01)
    precise = [each for each in candidates if cites[scores >= each].mean() >= LEAST_PRECISION]
    if not precise:
        raise ValueError(f"no threshold reaches a precision of {LEAST_PRECISION} on validation")
    return round(float(precise[0]), 2)


def _share(
    part: NDArray[np.bool_], whole: NDArray[np.bool_], papers: NDArray[np.int64], rng: np.random.Generator
) -> Figure | None:
    if not whole.any():
        return None
    _, member = np.unique(papers, return_inverse=True)
    parts, wholes = np.bincount(member, part), np.bincount(member, whole)
    picks = rng.integers(0, len(parts), size=(RESAMPLES, len(parts)))
    drawn = parts[picks].sum(1) / np.maximum(wholes[picks].sum(1), 1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Figure(100 * float(part.sum() / whole.sum()), 100 * float(low), 100 * float(high))


def _matrix(rows: list[NDArray[np.int64]]) -> scipy.sparse.csr_matrix:
    columns = np.concatenate(rows) if rows else np.empty(0, np.int64)
    ends = np.cumsum([0, *map(len, rows)])
    return scipy.sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(rows), BUCKETS))
