"""The port to whatever computes DAVINCI: pairs and priors in, scores out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from citewell.reranker.pairs import PairBatch

Floats = NDArray[np.float32]

LOGIT, TEXT_GATE, PRIOR_GATE = range(3)
"""Columns of what a scorer returns: the argument of eq. 10's sigmoid, and the mean gate (eq. 8) on either half."""


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """What computes the scores, so that an answer can be repeated."""

    name: str
    hash: str
    runtime: str
    hidden: int
    max_tokens: int


class PairScorer(Protocol):
    """Computes DAVINCI somewhere. All adapters give the same scores within 1e-3."""

    @property
    def info(self) -> ScorerInfo: ...

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        """`[pairs, 3]`: logit, text gate, prior gate of every pair. Raises Unavailable when out of reach."""

    async def check(self) -> None:
        """Raises Unavailable when it could not score now."""

    async def close(self) -> None:
        """Releases connections and threads."""
