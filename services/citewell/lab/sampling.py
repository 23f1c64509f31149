"""Seeded samples of queries, the same for every command."""

from __future__ import annotations

import numpy as np

from citewell.lab.dataset import Rows


def sampled(rows: Rows, count: int, seed: int) -> Rows:
    """The first `count` of a seeded shuffle: a smaller sample is part of any larger one."""
    return np.random.default_rng(seed).permutation(rows)[:count]
