"""The rows of papers in the arrays in memory, and the columns used by filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.filters import AnyOf, Between, Condition, NotThese, These
from citewell.index.ids import Keys, RowsById, grown
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
        self._row = RowsById()
        self._count = 0
        self._free: list[int] = []
        self._venues: dict[str, int] = {}
        self._live = np.zeros(0, dtype=bool)
        self._columns = {name: np.zeros(0, dtype=np.int32) for name in (*_COLUMNS, "venue")}
        self.keys = Keys()

    def __len__(self) -> int:
        """The number of rows, including free ones."""
        return self._count

    @property
    def papers(self) -> int:
        return len(self._row)

    def put(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Stores the columns of these distinct points; returns their rows."""
        rows = np.array([self._place(point) for point in points], dtype=np.int64)
        self._live = grown(self._live, self._count)
        self._columns = {name: grown(column, self._count) for name, column in self._columns.items()}
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
                row = self._count
                self._count += 1
            self._row.add(point.id, row)
            self.keys.put(row, point.key)
        return row

    def _value(self, name: str, point: Point) -> int:
        value = point.payload[name]
        return self._venues.setdefault(value, len(self._venues)) if name == "venue" else value

    def remove(self, points: Sequence[Point]) -> NDArray[np.int64]:
        """Frees the rows of these points and returns them."""
        rows = [row for point in points if (row := self._row.pop(point.id)) is not None]
        self._free += rows
        removed = np.array(rows, dtype=np.int64)
        self._live[removed] = False
        return removed

    def id(self, row: int) -> UUID:
        """The id of the point in this row."""
        return self._row.id(row)

    def admitted(self, conditions: Sequence[Condition]) -> NDArray[np.bool_]:
        """Which rows hold a paper that meets the conditions."""
        count = self._count
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
                    among[self._known(ids)] = True
                    admitted &= among
                case NotThese(ids):
                    admitted[self._known(ids)] = False
        return admitted

    def _known(self, ids: Iterable[UUID]) -> list[int]:
        return [row for id_ in ids if (row := self._row.get(id_)) is not None]
