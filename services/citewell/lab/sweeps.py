"""Sweeps α, β and γ: the gold paper's rank under eq. 3–5 for all settings, without building profiles for each.

A profile is v + α·s̄ + β·v̄, so a score is a sum of six inner products divided by the profile's length, and the length
comes from six more; only papers with citations depend on α and β. Here ties count in favour of the gold paper;
`retrieval` breaks them by paper id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.lab.experiment import Experiment
from citewell.lab.metrics import Ranks, means
from citewell.profiler.profiles import Vectors, from_fixed, normalised

ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
BETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
GAMMAS = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
SHOWN = ("MRR", "R@10", "R@300", "NDCG@10")
_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Landscape:
    """Metrics over the grid [γ, α, β], in per cent; δ is 1 - γ."""

    gammas: tuple[float, ...]
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    metrics: dict[str, NDArray[np.float64]]

    def best(self, metric: str) -> tuple[float, float, float]:
        """(α, β, γ) where a metric is highest."""
        grid = self.metrics[metric]
        gamma, alpha, beta = np.unravel_index(int(np.argmax(grid)), grid.shape)
        return self.alphas[alpha], self.betas[beta], self.gammas[gamma]

    def at(self, metric: str, alpha: float, beta: float, gamma: float) -> float:
        """The metric at one point of the grid."""
        place = self.gammas.index(gamma), self.alphas.index(alpha), self.betas.index(beta)
        return float(self.metrics[metric][place])


def sweep(
    experiment: Experiment,
    on_progress: Callable[[int, int], None],
    gammas: Sequence[float] = GAMMAS,
    alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS,
) -> Landscape:
    """The landscape of the experiment's queries."""
    queries = experiment.task.queries
    ranks = np.zeros((len(gammas), len(alphas), len(betas), len(queries)), np.int64)
    terms = _Terms(experiment)
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        for g, gamma in enumerate(gammas):
            ranks[g, :, :, block] = terms.ranks(queries[block], gamma, alphas, betas)
        on_progress(min(start + _BLOCK, len(queries)), len(queries))
    shape = ranks.shape[:3]
    measured = [means(row, SHOWN) for row in ranks.reshape(-1, len(queries))]
    metrics = {metric: np.array([row[metric] for row in measured]).reshape(shape) for metric in SHOWN}
    return Landscape(tuple(gammas), tuple(alphas), tuple(betas), metrics)


class _Terms:
    """Values shared by all settings: v, s̄ and v̄ of the cited papers, their products, and the content of the others."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        vectors, sums = experiment.vectors, experiment.table.sums
        self._cited = np.flatnonzero(sums.count)
        self._uncited = np.flatnonzero(sums.count == 0)
        count = sums.count[self._cited][:, None]
        self._parts: list[Vectors] = [
            vectors.papers[self._cited],
            (from_fixed(sums.contexts[self._cited]) / count).astype(np.float32),
            (from_fixed(sums.contents[self._cited]) / count).astype(np.float32),
        ]
        self._gram = [[np.einsum("nd,nd->n", a, b) for b in self._parts] for a in self._parts]
        self._content = normalised(vectors.papers[self._uncited])

    def _lengths(self, alpha: float, beta: float) -> Vectors:
        weights = (1.0, alpha, beta)
        squared = sum(a * b * self._gram[i][j] for i, a in enumerate(weights) for j, b in enumerate(weights))
        lengths: Vectors = np.sqrt(np.maximum(squared, 1e-12)).astype(np.float32)
        return lengths

    def ranks(self, queries: NDArray[np.int64], gamma: float, alphas: Sequence[float], betas: Sequence[float]) -> Ranks:
        """[α, β, query] ranks of the gold papers."""
        experiment = self._experiment
        vectors, contexts = experiment.vectors, experiment.data.contexts
        content = vectors.papers[contexts.citing[queries]]
        query = normalised(gamma * vectors.contexts[queries] + (1 - gamma) * content)
        own, said, citing = (query @ part.T for part in self._parts)
        others = query @ self._content.T
        eligible = np.stack(list(experiment.task.eligible(experiment.data, queries)))
        barred = np.where(eligible[:, self._cited], np.float32(0), np.float32(-np.inf))
        others[~eligible[:, self._uncited]] = -np.inf
        gold = contexts.cited[queries]
        place = np.searchsorted(self._cited, gold)
        is_cited = self._cited[np.minimum(place, len(self._cited) - 1)] == gold
        rows = np.arange(len(queries))
        place = np.where(is_cited, place, 0)
        fixed = others[rows, np.where(is_cited, 0, np.searchsorted(self._uncited, gold))]
        others.sort(axis=1)
        out = np.empty((len(alphas), len(betas), len(queries)), np.int64)
        for a, alpha in enumerate(alphas):
            with_alpha = own + np.float32(alpha) * said
            for b, beta in enumerate(betas):
                scores = (with_alpha + np.float32(beta) * citing) / self._lengths(alpha, beta)
                score = np.where(is_cited, scores[rows, place], fixed)
                scores += barred
                above = np.count_nonzero(scores > score[:, None], axis=1)
                above += [
                    others.shape[1] - int(np.searchsorted(o, s, "right")) for o, s in zip(others, score, strict=True)
                ]
                out[a, b] = 1 + above
        return out
