"""Rows by id, and the key of each row, in 70 bytes a paper; dictionaries and lists of Python objects take 260."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

_LOW = (1 << 64) - 1
_EMPTY, _REMOVED = -1, -2
_SMALLEST = 1024


class RowsById:
    """A hash table with open addressing. An id has one row, a row at most one id."""

    def __init__(self) -> None:
        self._ids = np.zeros((0, 2), np.uint64)
        self._slots = np.full(_SMALLEST, _EMPTY, np.int32)
        self._used = 0
        """Slots that are not empty, removed ones included."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, id_: UUID) -> int | None:
        slot = self._slot(id_)
        return None if slot is None else int(self._slots[slot])

    def add(self, id_: UUID, row: int) -> None:
        """Sets the row of an id that has none."""
        if 2 * (self._used + 1) > len(self._slots):
            self._rebuild()
        self._ids = grown(self._ids, row + 1)
        self._ids[row] = id_.int >> 64, id_.int & _LOW
        mask = len(self._slots) - 1
        slot = id_.int & mask
        while self._slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._used += bool(self._slots[slot] == _EMPTY)
        self._slots[slot] = row
        self._count += 1

    def pop(self, id_: UUID) -> int | None:
        """Forgets an id; returns its row, if it had one."""
        slot = self._slot(id_)
        if slot is None:
            return None
        row = int(self._slots[slot])
        self._slots[slot] = _REMOVED
        self._count -= 1
        return row

    def id(self, row: int) -> UUID:
        """The id of a row, or the last one that it had."""
        high, low = self._ids[row].tolist()
        return UUID(int=(high << 64) | low)

    def _slot(self, id_: UUID) -> int | None:
        mask, high, low = len(self._slots) - 1, id_.int >> 64, id_.int & _LOW
        slot = low & mask
        while (row := self._slots[slot]) != _EMPTY:
            if row >= 0 and self._ids[row, 1] == low and self._ids[row, 0] == high:
                return slot
            slot = (slot + 1) & mask
        return None

    def _rebuild(self) -> None:
        """Enters all ids anew, without removed slots, into a table that is a quarter full at most."""
        rows = self._slots[self._slots >= 0]
        size = len(self._slots)
        while size < 4 * (len(rows) + 1):
            size *= 2
        self._slots = np.full(size, _EMPTY, np.int32)
        self._used = len(rows)
        slots = (self._ids[rows, 1] & np.uint64(size - 1)).astype(np.int64)
        while len(rows):
            free = np.flatnonzero(self._slots[slots] == _EMPTY)
            free = free[np.unique(slots[free], return_index=True)[1]]  # one row a slot
            self._slots[slots[free]] = rows[free]
            left = np.ones(len(rows), bool)
            left[free] = False
            rows, slots = rows[left], (slots[left] + 1) & (size - 1)


class Keys:
    """The key of each row, as UTF-8 in one run of bytes. A longer key of a row is appended."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._start = np.zeros(0, np.int64)
        self._length = np.zeros(0, np.int32)

    def put(self, row: int, key: str) -> None:
        self._start, self._length = grown(self._start, row + 1), grown(self._length, row + 1)
        written = key.encode("utf-8", "surrogatepass")
        if len(written) > self._length[row]:
            self._start[row] = len(self._bytes)
            self._bytes += written
        else:
            start = int(self._start[row])
            self._bytes[start : start + len(written)] = written
        self._length[row] = len(written)

    def __getitem__(self, row: int) -> str:
        start = int(self._start[row])
        return self._bytes[start : start + int(self._length[row])].decode("utf-8", "surrogatepass")


def grown(array: NDArray[Any], least: int) -> NDArray[Any]:
    """The array, or a copy of at least twice its length if it is shorter than `least`."""
    if least <= len(array):
        return array
    longer = np.zeros((max(_SMALLEST, 2 * len(array), least), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
