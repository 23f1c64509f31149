"""Profiles as a FAISS index on a GPU."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from citewell.index.points import Vector

Places = NDArray[np.int64]

_COMPACT_AT = 1024
# The most a GPU index returns for one query.
_GPU_MOST = 2048
_NONE = -1


def gpu_is_there() -> bool:
    """Whether FAISS was built for GPUs and sees one."""
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


class FaissIndex:
    """Vectors by row. FAISS only appends: a new version gets a new position, and its old position becomes dead.

    Searches may run in parallel; changes need exclusive access.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._index = _new_index(dimension)
        self._position = np.empty(0, np.int64)
        """row → position"""
        self._row = np.empty(0, np.int64)
        """position → row"""
        self._dead = 0

    @property
    def positions(self) -> int:
        """The number of positions, dead ones included."""
        return len(self._row)

    @property
    def most(self) -> int:
        """The most that one search returns."""
        return _GPU_MOST

    def put(self, rows: Places, vectors: Vector) -> None:
        """Sets the vectors of these distinct rows."""
        self.remove(rows)
        self._index.add(vectors)
        if (most := int(rows.max()) + 1) > len(self._position):
            missing = max(most, 2 * len(self._position)) - len(self._position)
            self._position = np.append(self._position, np.full(missing, _NONE))
        self._position[rows] = np.arange(len(self._row), len(self._row) + len(rows))
        self._row = np.append(self._row, rows)

    def remove(self, rows: Places) -> None:
        """Forgets these rows; rows without a vector are fine."""
        rows = rows[rows < len(self._position)]
        rows = rows[self._position[rows] != _NONE]
        self._row[self._position[rows]] = _NONE
        self._position[rows] = _NONE
        self._dead += len(rows)
        if self._dead > len(self._row) / 2 + _COMPACT_AT / 2:
            self._compact()

    def _compact(self) -> None:
        alive = self._row != _NONE
        vectors = self._index.reconstruct_batch(np.flatnonzero(alive))
        self._index = _new_index(self._dimension)
        self._index.add(vectors)
        self._row = self._row[alive]
        self._position[self._row] = np.arange(len(self._row))
        self._dead = 0

    def nearest(
        self, vector: Vector, limit: int, admitted: NDArray[np.bool_]
    ) -> tuple[Places, NDArray[np.float32]] | None:
        """The admitted rows nearest to the vector and their cosines, best first.

        None when this kind of index cannot answer the query.
        """
        positions = self._position[: len(admitted)]
        chosen = np.zeros(len(self._row), dtype=bool)
        places = positions[admitted[: len(positions)]]
        chosen[places[places != _NONE]] = True
        limit = min(limit, int(np.count_nonzero(chosen)))
        if not limit:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        # GPU indexes accept no selector: take the nearest of all rows, as many as it can return, and filter them.
        scores, found = self._index.search(vector[np.newaxis], min(_GPU_MOST, len(self._row)))
        kept = chosen[found[0]]
        if np.count_nonzero(kept) < limit:
            return None
        return self._row[found[0][kept][:limit]], scores[0][kept][:limit]


def _new_index(dimension: int) -> Any:
    return faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), dimension)
