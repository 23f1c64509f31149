"""Retrieval variants beyond eq. 3 that need no training: those measured on validation, and HYBRID."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.systems import Fusion, Popularity, SeveralVectors, System
from citewell.profiler.profiles import QueryWeights, Vectors


class RankFusion:
    """Σ 1/(k + rank): reciprocal rank fusion over all papers, for comparison with fusing scores."""

    def __init__(self, name: str, parts: Sequence[System], experiment: Experiment, k: int = 60) -> None:
        self.name = name
        self._parts, self._k, self._experiment = parts, k, experiment

    def scores(self, queries: Rows) -> Vectors:
        barred = [~mask for mask in self._experiment.task.eligible(self._experiment.data, queries)]
        total: Vectors = np.zeros((len(queries), len(self._experiment.data.papers)), np.float32)
        for part in self._parts:
            for row, scores in enumerate(part.scores(queries)):
                scores[barred[row]] = -np.inf
                order = np.argsort(-scores, kind="stable")
                total[row, order] += 1 / (self._k + 1 + np.arange(len(order), dtype=np.float32))
        return total


def shrunk(experiment: Experiment, kappa: float) -> System:
    """eq. 3 with the citing contexts' sum divided by |N_in| + κ (shrinkage)."""
    return experiment.profiler_with(f"eq. 3, shrinkage κ = {kappa:g}", replace(chosen.PROFILE, shrinkage=kappa))


def several(experiment: Experiment, name: str, query_weights: QueryWeights, *, content: bool) -> System:
    """Several vectors per paper instead of their mean."""
    return SeveralVectors(name, experiment.data, experiment.vectors, experiment.known, query_weights, content=content)


def fused(experiment: Experiment, name: str, *others: tuple[float, System]) -> System:
    """eq. 3 plus weighted scores of other systems."""
    return Fusion(name, [(1.0, experiment.profiler), *others])


def popularity(experiment: Experiment) -> System:
    """log(1 + |N_in|)."""
    return Popularity("popularity", experiment.data, experiment.known)


CONTEXT_ONLY = QueryWeights(1.0, 0.0)

VARIANTS: tuple[Callable[[Experiment], System], ...] = (
    lambda e: e.profiler,
    lambda e: shrunk(e, 1),
    lambda e: shrunk(e, 3),
    lambda e: several(e, "several vectors: content and every context", chosen.QUERY, content=True),
    lambda e: several(e, "nearest train context", CONTEXT_ONLY, content=False),
    lambda e: e.lexical_profile(
        "lexical, papers only", replace(chosen.FIELDS, contexts=0.0), replace(chosen.TERMS, floor=1.0)
    ),
    lambda e: e.lexical_profile(
        "lexical, papers only, near words count more", replace(chosen.FIELDS, contexts=0.0), chosen.TERMS
    ),
    lambda e: e.lexical_profile("lexical profile, all words alike", terms=replace(chosen.TERMS, floor=1.0)),
    lambda e: e.lexical_profile("lexical profile, near words count more"),
    lambda e: RankFusion("eq. 3 and lexical profile, ranks fused (k = 60)", [e.profiler, e.lexical_profile()], e),
    lambda e: fused(e, "HYBRID: eq. 3 and lexical profile, scores fused", (chosen.LEXICAL, e.lexical_profile())),
    lambda e: Fusion(
        "the same with shrinkage κ = 3",
        [(1.0, shrunk(e, 3)), (chosen.LEXICAL, e.lexical_profile())],
    ),
    lambda e: fused(e, "eq. 3 and popularity", (0.02, popularity(e))),
    lambda e: fused(e, "HYBRID and popularity", (chosen.LEXICAL, e.lexical_profile()), (0.02, popularity(e))),
    lambda e: fused(
        e,
        "HYBRID and nearest train context",
        (chosen.LEXICAL, e.lexical_profile()),
        (0.1, several(e, "nearest", CONTEXT_ONLY, content=False)),
    ),
)
"""The variants measured on validation, in the order of the report."""
