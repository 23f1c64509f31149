"""Calibrates confidence: from the stages' scores of an item to its probability of being cited.

    features of items of validation queries ──▶ logistic regression ──▶ weights for the recommender
    features of items of test queries ──▶ reliability: of items with 70 %, the share that is right

Only the cited paper of a query counts as right. Other papers may be right as well, so confidence is underestimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RIDGE = 1e-3
"""Weight of the penalty on standardised coefficients, as a share of the number of items."""
_STEPS = 60
_CLOSE = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of some queries: the features of each, and whether it is the cited paper."""

    names: tuple[str, ...]
    features: Floats
    """[items, names]."""
    right: Flags
    query: NDArray[np.int64]
    """Which query each item answers, counted from 0."""
    unrelated: Flags
    """Whether an item belongs to a query that no paper of the set can answer."""

    def take(self, chosen: Flags) -> Items:
        """Some of the items."""
        parts = self.features[chosen], self.right[chosen], self.query[chosen], self.unrelated[chosen]
        return Items(self.names, *parts)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A logistic regression over raw features."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float

    def confidence(self, items: Items) -> Floats:
        """A probability for each item."""
        columns = [items.names.index(name) for name in self.names]
        logits = items.features[:, columns] @ np.array(self.weights) + self.bias
        return _sigmoid(logits)


def fit(items: Items, names: Sequence[str]) -> Fitted:
    """Newton's method on the penalised likelihood; the result does not depend on the scale of a feature."""
    raw = items.features[:, [items.names.index(name) for name in names]]
    mean, spread = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-9)
    x = np.column_stack([(raw - mean) / spread, np.ones(len(raw))])
    y = items.right.astype(np.float64)
    penalty = np.append(np.full(len(names), RIDGE * len(raw)), 0.0)
    weights = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (y - p) - penalty * weights
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        weights += step
        if float(np.abs(step).max()) < _CLOSE:
            break
    scaled = weights[:-1] / spread
    return Fitted(tuple(names), tuple(map(float, scaled)), float(weights[-1] - scaled @ mean))


@dataclass(frozen=True, slots=True)
class Bin:
    """Items of similar confidence."""

    said: float
    """Mean confidence."""
    right: float
    """Share that is right."""
    low: float
    """A 95 % interval of that share (Wilson)."""
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well confidence agrees with the share of right items."""

    bins: tuple[Bin, ...]
    error: float
    """Expected calibration error: the mean of |said - right| over items, by bin."""
    brier: float


def reliability(confidence: Floats, right: Flags, bins: int = 10) -> Reliability:
    """Ten bins of equal width; empty ones are left out."""
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    made = []
    for each in np.unique(number):
        inside = number == each
        made.append(_bin(float(confidence[inside].mean()), int(right[inside].sum()), int(inside.sum())))
    error = sum(one.count * abs(one.said - one.right) for one in made) / max(1, len(confidence))
    return Reliability(tuple(made), error, float(np.mean((confidence - right) ** 2)))


@dataclass(frozen=True, slots=True)
class Kept:
    """The effect of `min_confidence` on answers of ten items."""

    least: float
    items: float
    """Mean number of items per answer."""
    right: float
    """Share of the kept items that are the cited paper."""
    found: float
    """Share of the cited papers among all items that is kept."""
    empty: float
    """Share of answers that are empty."""
    empty_unrelated: float
    """Share of the answers to unrelated queries that are empty."""


def kept(items: Items, confidence: Floats, least: Sequence[float]) -> list[Kept]:
    """The effect of each threshold."""
    told = []
    related = ~items.unrelated
    for threshold in least:
        inside = confidence >= threshold
        chosen = inside & related
        told.append(
            Kept(
                threshold,
                chosen.sum() / max(1, len(np.unique(items.query[related]))),
                float(items.right[chosen].mean()) if chosen.any() else float("nan"),
                items.right[chosen].sum() / max(1, items.right[related].sum()),
                _empty(items.query[related], items.query[chosen]),
                _empty(items.query[items.unrelated], items.query[inside & items.unrelated]),
            )
        )
    return told


def _empty(asked: NDArray[np.int64], answered: NDArray[np.int64]) -> float:
    total = len(np.unique(asked))
    return 1 - len(np.unique(answered)) / total if total else float("nan")


def _bin(said: float, right: int, count: int) -> Bin:
    share, z = right / count, 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return Bin(said, share, min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach)), count)


def _sigmoid(logits: Floats) -> Floats:
    made: Floats = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return made
