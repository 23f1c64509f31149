"""The profiles of one view in memory, searched by FAISS, with the columns one may filter by beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import faiss
import numpy as np
from numpy.typing import NDArray

from citewell.index.filters import AnyOf, Between, Condition, NotThese
from citewell.index.points import PROFILE, Point, Vector

Form = Literal["flat", "sq8", "gpu"]

_COLUMNS = ("last_day", "year")
# Rows are never overwritten, so that any FAISS index will do: a new version is a new row, and the old one is dead.
_COMPACT_AT = 1024
# The most a GPU index returns for one query.
_GPU_MOST = 2048


def answerable(conditions: Sequence[Condition]) -> bool:
    """Whether the columns in memory can tell who meets these conditions."""
    return all(
        isinstance(condition, NotThese)
        or (isinstance(condition, Between) and condition.key in _COLUMNS)
        or (isinstance(condition, AnyOf) and condition.key == "venue")
        for condition in conditions
    )


def gpu_is_there() -> bool:
    """Whether FAISS was built for GPUs and sees one."""
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


class FaissIndex:
    """Searches run side by side; `put` must run alone."""

    def __init__(self, dimension: int, form: Form) -> None:
        self._dimension, self._form = dimension, form
        self._index = _new_index(dimension, form)
        self._row: dict[UUID, int] = {}
        self._ids: list[UUID] = []
        self._venues: dict[str, int] = {}
        self._live = np.zeros(0, dtype=bool)
        self._columns = {name: np.zeros(0, dtype=np.int32) for name in (*_COLUMNS, "venue")}

    @property
    def rows(self) -> int:
        """Rows held, dead ones too."""
        return len(self._ids)

    def __len__(self) -> int:
        return len(self._row)

    def put(self, points: Sequence[Point]) -> None:
        """Takes new versions in; points without a profile, hidden ones, are forgotten."""
        for point in points:
            row = self._row.pop(point.id, None)
            if row is not None:
                self._live[row] = False
        shown = [point for point in points if PROFILE in point.vectors]
        if shown:
            self._add(shown)
        if len(self._ids) > 2 * len(self._row) + _COMPACT_AT:
            self._compact()

    def _add(self, points: Sequence[Point]) -> None:
        first = len(self._ids)
        self._row.update({point.id: row for row, point in enumerate(points, first)})
        self._ids += [point.id for point in points]
        self._live = np.append(self._live, np.ones(len(points), dtype=bool))
        for name, column in self._columns.items():
            values = [self._value(name, point) for point in points]
            self._columns[name] = np.append(column, np.array(values, dtype=np.int32))
        self._add_vectors(np.stack([point.dense(PROFILE) for point in points]))

    def _add_vectors(self, vectors: NDArray[np.float32]) -> None:
        if not self._index.is_trained:  # the range of each component, wide enough for what has not been seen
            wide = np.full(self._dimension, 4 / np.sqrt(self._dimension), dtype=np.float32)
            self._index.train(np.vstack([vectors, wide, -wide]))
        self._index.add(vectors)

    def _value(self, name: str, point: Point) -> int:
        value = point.payload[name]
        return self._venues.setdefault(value, len(self._venues)) if name == "venue" else value

    def _compact(self) -> None:
        rows = np.flatnonzero(self._live)
        vectors = self._index.reconstruct_batch(rows)
        self._index = _new_index(self._dimension, self._form)
        self._add_vectors(vectors)
        self._ids = [self._ids[row] for row in rows]
        self._row = {id_: row for row, id_ in enumerate(self._ids)}
        self._live = self._live[rows]
        self._columns = {name: column[rows] for name, column in self._columns.items()}

    def search(
        self, vector: Vector, limit: int, conditions: Sequence[Condition] = ()
    ) -> list[tuple[UUID, float]] | None:
        """The nearest profiles by cosine, best first; None when this kind of index cannot tell."""
        admitted = self._admitted(conditions)
        limit = min(limit, int(np.count_nonzero(admitted)))
        if not limit:
            return []
        if self._form == "gpu":
            # No GPU index takes a selector: choose among the nearest of all, as far as it goes.
            most = min(_GPU_MOST, len(self._ids))
            scores, rows = self._index.search(vector[np.newaxis], most)
            chosen = admitted[rows[0]]
            if np.count_nonzero(chosen) < limit:
                return None
            scores, rows = scores[:, chosen][:, :limit], rows[:, chosen][:, :limit]
        else:
            bitmap = np.packbits(admitted, bitorder="little")
            parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bitmap))  # type: ignore[arg-type, call-arg]
            scores, rows = self._index.search(vector[np.newaxis], limit, params=parameters)
        return [(self._ids[row], float(score)) for row, score in zip(rows[0], scores[0], strict=True)]

    def _admitted(self, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
        admitted = self._live.copy()
        for condition in conditions:
            match condition:
                case Between(key, least, below):
                    column = self._columns[key]
                    if least is not None:
                        admitted &= column >= least
                    if below is not None:
                        admitted &= column < below
                case AnyOf(_, values):
                    codes = [self._venues[value] for value in values if value in self._venues]
                    admitted &= np.isin(self._columns["venue"], codes)
                case NotThese(ids):
                    admitted[[self._row[id_] for id_ in ids if id_ in self._row]] = False
        return admitted


def _new_index(dimension: int, form: Form) -> Any:
    if form == "sq8":
        return faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    if form == "gpu":
        return faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), dimension)
    return faiss.IndexFlatIP(dimension)
