"""Maximal marginal relevance: an order that trades relevance against saying the same thing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def diversified(
    ranked_ids: Sequence[str], contents: Mapping[str, Sequence[float]], diversity: float, count: int
) -> list[str]:
    """The first `count` ids in MMR order: (1 - diversity) · relevance - diversity · largest cosine to those before.

    Relevance falls evenly with the rank, from 1 to 1/n, since scores of different stages cannot be compared. Ties go to
    the better ranked. An id without a content vector has cosine 0 to every other.
    """
    dimension = max((len(vector) for vector in contents.values()), default=1)
    vectors: NDArray[np.float64] = np.zeros((len(ranked_ids), dimension))
    for row, paper_id in enumerate(ranked_ids):
        if paper_id in contents:
            vectors[row] = np.asarray(contents[paper_id], dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    relevance = 1.0 - np.arange(len(ranked_ids)) / max(len(ranked_ids), 1)
    nearest = np.zeros(len(ranked_ids))
    chosen: list[int] = []
    for _ in range(min(count, len(ranked_ids))):
        gains = (1 - diversity) * relevance - diversity * nearest
        gains[chosen] = -np.inf
        best = int(np.argmax(gains))
        chosen.append(best)
        nearest = np.maximum(nearest, vectors @ vectors[best])
    return [ranked_ids[row] for row in chosen]
