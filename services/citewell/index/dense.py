"""Vectors in memory in blocks of rows, so that growth copies no vector: as float32, or as int8 with a scale each."""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

from citewell.index.points import Vector

BLOCK = 8192
_AT_ONCE = 1024
"""Quantised vectors that are widened at once: their float32 numbers fit into a core's cache."""
_LARGEST_CODE = 127


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
        blocks, places = np.divmod(rows, BLOCK)
        for number in np.unique(blocks).tolist():
            inside = np.flatnonzero(blocks == number)
            chosen[inside] = self._blocks[number][places[inside]]
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


class Int8:
    """Vectors in a quarter of the memory. A number is off by half a 127th of the vector's largest one at most.

    With unit vectors of 384 numbers, an inner product is off by 0.0004 (standard deviation), so it only selects
    candidates. Searches may run in parallel; changes need exclusive access.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._codes: list[NDArray[np.int8]] = []
        self._scales: list[Vector] = []

    def put(self, rows: NDArray[np.int64], vectors: Vector) -> None:
        """Sets the vectors of these rows."""
        while len(self._codes) * BLOCK <= rows.max(initial=-1):
            self._codes.append(np.zeros((BLOCK, self._dimension), np.int8))
            self._scales.append(np.zeros(BLOCK, np.float32))
        largest = np.abs(vectors).max(axis=1, initial=0)
        scales = np.where(largest > 0, largest / _LARGEST_CODE, 1).astype(np.float32)
        codes = np.rint(vectors / scales[:, np.newaxis]).astype(np.int8)
        for row, code, scale in zip(rows.tolist(), codes, scales, strict=True):
            self._codes[row // BLOCK][row % BLOCK] = code
            self._scales[row // BLOCK][row % BLOCK] = scale

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Does nothing: the caller ignores the scores of free rows."""

    def scores(self, vector: Vector, rows: int) -> NDArray[np.float32]:
        """The approximate inner product with each row below `rows`, on this thread alone, and without the GIL."""
        scores = np.empty(rows, np.float32)
        query = np.ascontiguousarray(vector, np.float32)
        wide = np.empty((_AT_ONCE, self._dimension), np.float32)
        for number, (codes, scales) in enumerate(zip(self._codes, self._scales, strict=True)):
            part = scores[number * BLOCK : (number + 1) * BLOCK]
            for start in range(0, len(part), _AT_ONCE):
                some = part[start : start + _AT_ONCE]
                np.copyto(wide[: len(some)], codes[start : start + len(some)], casting="safe")
                faiss.fvec_inner_products_ny(  # type: ignore[attr-defined]
                    faiss.swig_ptr(some), faiss.swig_ptr(query), faiss.swig_ptr(wide), self._dimension, some.size
                )
            part *= scales[: len(part)]
        return scores
