"""From logits to a ranking: what was scored goes first, by its score; the rest keeps its retrieval order behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from citewell.reranker.scorer import LOGIT, PRIOR_GATE, TEXT_GATE, Floats


@dataclass(frozen=True, slots=True)
class RankedPaper:
    """A candidate's new place and how it came by it; the model's figures are None where it was not scored."""

    paper_id: str
    rank: int
    prior: float
    score: float | None = None
    text_gate: float | None = None
    prior_gate: float | None = None


def rank_priors(ranks: Sequence[int], decay: float) -> Floats:
    """Eq. 6: p = λ^r for 1-indexed ranks."""
    return np.power(decay, np.asarray(ranks, np.float64)).astype(np.float32)


def ranking(ids: Sequence[str], priors: Floats, scores: Floats) -> list[RankedPaper]:
    """The candidates, given in retrieval order, in their new order, ties by id; rows of NaN were not scored."""
    shown = [sigmoid(float(logit)) if math.isfinite(logit) else None for logit in scores[:, LOGIT]]

    def place(i: int) -> tuple[float, str]:
        # By the score that is shown: logits that differ may round to the same one, and callers sort by what they see.
        score = shown[i]
        return (math.inf, "") if score is None else (-score, ids[i])

    ranked = []
    for rank, i in enumerate(sorted(range(len(ids)), key=place), 1):
        if shown[i] is None:
            ranked.append(RankedPaper(ids[i], rank, float(priors[i])))
            continue
        text, prior = float(scores[i, TEXT_GATE]), float(scores[i, PRIOR_GATE])
        ranked.append(RankedPaper(ids[i], rank, float(priors[i]), shown[i], text, prior))
    return ranked


def sigmoid(logit: float) -> float:
    """σ of eq. 10, in double precision: in single, two good candidates could both be 1."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1.0 + math.exp(logit))
