"""The papers that one place cites together: every one of them is a right answer of a query for that place.

A data set holds one context per cited paper. Contexts belong to one bracket if they are of one citing paper and their
texts agree, with markers beside the target counted as part of it: "(OTHERCIT; TARGETCIT)" and "(TARGETCIT; OTHERCIT)"
are two contexts of the same bracket. Works of a bracket that the data set lacks stay unknown.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset
from citewell.scholarly.contexts import OTHER, TARGET, normalise

_BESIDE = r"[\s,;]*"
_TARGET = re.compile(rf"(?:{OTHER}{_BESIDE})*{TARGET}(?:{_BESIDE}{OTHER})*")


class Brackets:
    """Finds the cited papers of every bracket of a data set."""

    def __init__(self, data: Dataset) -> None:
        contexts = data.contexts
        keys = [_place(int(citing), contexts.texts[row]) for row, citing in enumerate(contexts.citing)]
        _, self._bracket = np.unique(np.array(keys, np.uint64), return_inverse=True)
        order = np.argsort(self._bracket, kind="stable")
        self._cited = contexts.cited[order]
        self._starts = np.searchsorted(self._bracket[order], np.arange(len(np.unique(self._bracket)) + 1))

    def answers(self, query: int) -> NDArray[np.int32]:
        """The papers that the bracket of a context (a row) cites; its own cited paper is among them."""
        bracket = self._bracket[query]
        cited: NDArray[np.int32] = np.unique(self._cited[self._starts[bracket] : self._starts[bracket + 1]])
        return cited

    def sizes(self, queries: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The number of different papers that each query's bracket cites."""
        return np.array([len(self.answers(int(query))) for query in queries], np.int64)


def _place(citing: int, text: str) -> int:
    """A 64-bit hash of the citing paper and of its text around the bracket."""
    place = _TARGET.sub(TARGET, normalise(text))
    return int.from_bytes(blake2b(f"{citing} {place}".encode("utf-8", "replace"), digest_size=8).digest(), "big")
