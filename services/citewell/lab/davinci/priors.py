"""The priors of a retrieved list: λ^r (eq. 6), the raw score (A2), or a softmax of the scores (A3)."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

DECAY = 0.95
"""λ of eq. 6."""

Floats = NDArray[np.float32]


class PriorKind(StrEnum):
    RANK = "rank"
    SCORE = "score"
    SOFTMAX = "softmax"


def rank_prior(ranks: NDArray[np.int64], decay: float = DECAY) -> Floats:
    """Eq. 6: p = λ^r for 1-based ranks."""
    if len(ranks) and ranks.min() < 1:
        raise ValueError(f"ranks count from 1, got {ranks.min()}")
    return np.power(decay, ranks).astype(np.float32)


def prior_columns(
    ranks: NDArray[np.int64], scores: Floats, list_scores: NDArray[np.floating], decay: float = DECAY
) -> Floats:
    """`[pairs, kinds]`: every prior of pairs with these ranks and scores, of one query whose list has `list_scores`.

    A positive injected in training has its own score; the softmax is over the retrieved list, as in serving.
    """
    top = float(list_scores.max())
    mass = float(np.exp(list_scores - top).sum())
    softmax = np.exp(scores - top) / mass
    return np.stack([rank_prior(ranks, decay), scores, softmax.astype(np.float32)], axis=1).astype(np.float32)
