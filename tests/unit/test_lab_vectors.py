"""The cache of text vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from citewell.lab.vectors import VectorCache


def test_two_processes_add_to_one_cache_and_lose_nothing(tmp_path: Path) -> None:
    caches = [VectorCache(tmp_path, "model") for _ in range(2)]
    for number, cache in enumerate(caches):  # both opened it before either wrote
        keys = np.array([10 * number, 10 * number + 1], np.uint64)
        cache.add(keys, np.eye(4)[2 * number : 2 * number + 2], np.ones(2), f"process {number}")
    found = VectorCache(tmp_path, "model").get(np.array([11, 0, 10, 1], np.uint64))
    np.testing.assert_array_equal(found, np.eye(4, dtype=np.float32)[[3, 0, 2, 1]])
