"""Seeded samples of queries, the same for every command."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset, Rows


def sampled(rows: Rows, count: int, seed: int) -> Rows:
    """The first `count` of a seeded shuffle: a smaller sample is part of any larger one."""
    return np.random.default_rng(seed).permutation(rows)[:count]


def taught(data: Dataset, queries: Rows) -> NDArray[np.bool_]:
    """Which queries teach the window encoder: those of every second citing paper. What reads its vectors learns from
    the others."""
    of_first_half: NDArray[np.bool_] = data.contexts.citing[queries] % 2 == 0
    return of_first_half
