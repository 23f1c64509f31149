"""Vectors in memory in blocks of rows, so that growth copies no vector."""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

from citewell.index.points import Vector

BLOCK = 8192


class Dense:
    """Vectors of one dimension, by row. Searches may run in parallel; changes need exclusive access."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._blocks: list[Vector] = []

    def put(self, rows: NDArray[np.int64], vectors: Vector) -> None:
        """Sets the vectors of these rows."""
        while len(self._blocks) * BLOCK <= rows.max(initial=-1):
            self._blocks.append(np.zeros((BLOCK, self._dimension), np.float32))
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            self._blocks[row // BLOCK][row % BLOCK] = vector

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Does nothing: the caller ignores the scores of free rows."""

    def rows(self, rows: NDArray[np.int64]) -> Vector:
        """The vectors of these rows."""
        chosen = np.empty((len(rows), self._dimension), np.float32)
        for number, row in enumerate(rows.tolist()):
            chosen[number] = self._blocks[row // BLOCK][row % BLOCK]
        return chosen

    def scores(self, vector: Vector, rows: int) -> NDArray[np.float32]:
        """The inner product with each row below `rows`. FAISS computes it on this thread alone, and without the GIL."""
        scores = np.empty(rows, np.float32)
        query = np.ascontiguousarray(vector, np.float32)
        for number, block in enumerate(self._blocks):
            part = scores[number * BLOCK : (number + 1) * BLOCK]
            if part.size:
                faiss.fvec_inner_products_ny(  # type: ignore[attr-defined]
                    faiss.swig_ptr(part), faiss.swig_ptr(query), faiss.swig_ptr(block), self._dimension, part.size
                )
        return scores
