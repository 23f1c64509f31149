"""What the second phase of a HYBRID search reads of a query, beside its vector and the weights of its words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PARTS = ("nearest", "near", "wide", "context", "title")
"""The parts of a query that weigh its words: words within about one, three and ten words of the marker, all words of
the context alike, and the words of the title."""


NO_VECTOR = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SecondPhaseQuery:
    """The query's vectors, and its words weighed by each of `PARTS`."""

    context: NDArray[np.float32]
    paper: NDArray[np.float32]
    """The vector of title and abstract. Either vector is empty where the query has no such text."""
    weights: NDArray[np.float32]
    """[parts, terms], for the terms of the lexical query. With the words that were cut, a row sums to 1, or to 0."""
    window: NDArray[np.float32] = field(default_factory=lambda: NO_VECTOR)
    """The vector of the words around the marker, by an encoder of its own; empty where there is none."""
