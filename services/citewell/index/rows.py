"""The rows of papers in the arrays in memory, and the columns used by filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.filters import AnyOf, Between, Condition, NotThese, These
from citewell.index.points import Point

_COLUMNS = ("last_day", "year")


def answerable(conditions: Sequence[Condition]) -> bool:
    """Whether the columns in memory suffice to evaluate these conditions."""
    return all(
        isinstance(condition, NotThese | These)
        or (isinstance(condition, Between) and condition.key in _COLUMNS)
        or (isinstance(condition, AnyOf) and condition.key == "venue")
        for condition in conditions
    )


class Rows:
    """A paper keeps its row in all versions; the row of a removed paper is reused."""

    def __init__(self) -> None:
        self._row: dict[UUID, int] = {}
        self._ids: list[UUID | None] = []
        self._free: list[int] = []
        self._venues: dict[str, int] = {}
        self._live = np.zeros(0, dtype=bool)
        self._columns = {name: np.zeros(0, dtype=np.int32) for name in (*_COLUMNS, "venue")}
        self.keys: list[str] = []

    def __len__(self) -> int:
        """The number of rows, including free ones."""
        return len(self._ids)

    @property
    def papers(self) -> int:
        return len(self._row)

    def put(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Stores the columns of these distinct points; returns their rows."""
        rows = np.array([self._place(point) for point in points], dtype=np.int64)
        if len(self._ids) > len(self._live):
            size = max(1024, 2 * len(self._ids))
            self._live = _grown(self._live, size)
            self._columns = {name: _grown(column, size) for name, column in self._columns.items()}
        self._live[rows] = True
        for name, column in self._columns.items():
            column[rows] = [self._value(name, point) for point in points]
        return rows

    def _place(self, point: Point) -> int:
        row = self._row.get(point.id)
        if row is None:
            if self._free:
                row = self._free.pop()
            else:
                row = len(self._ids)
                self._ids.append(None)
                self.keys.append("")
            self._row[point.id], self._ids[row], self.keys[row] = row, point.id, point.key
        return row

    def _value(self, name: str, point: Point) -> int:
        value = point.payload[name]
        return self._venues.setdefault(value, len(self._venues)) if name == "venue" else value

    def remove(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Frees the rows of these points and returns them."""
        rows = [self._row.pop(point.id) for point in points if point.id in self._row]
        self._free += rows
        removed = np.array(rows, dtype=np.int64)
        self._live[removed] = False
        return removed

    def id(self, row: int) -> UUID:
        """The id of the point in this row."""
        id_ = self._ids[row]
        assert id_ is not None
        return id_

    def admitted(self, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
        """Which rows hold a paper that meets the conditions."""
        count = len(self._ids)
        admitted = self._live[:count].copy()
        for condition in conditions:
            match condition:
                case Between(key, least, below):
                    column = self._columns[key][:count]
                    if least is not None:
                        admitted &= column >= least
                    if below is not None:
                        admitted &= column < below
                case AnyOf(_, values):
                    codes = [self._venues[value] for value in values if value in self._venues]
                    admitted &= np.isin(self._columns["venue"][:count], codes)
                case These(ids):
                    among = np.zeros(count, dtype=bool)
                    among[[self._row[id_] for id_ in ids if id_ in self._row]] = True
                    admitted &= among
                case NotThese(ids):
                    admitted[[self._row[id_] for id_ in ids if id_ in self._row]] = False
        return admitted


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
