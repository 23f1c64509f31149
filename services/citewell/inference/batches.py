"""Groups texts of like length into batches of bounded size, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def token_batches(lengths: Sequence[int] | NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Positions of the texts of each batch, longest first; padded, no batch exceeds `budget` tokens.

    A text longer than the budget is a batch of its own. Equal lengths keep their order, so that the same texts always
    make the same batches.
    """
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, budget // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def padded(rows: Sequence[Sequence[int]], pad: int) -> NDArray[np.int64]:
    """The rows as one matrix, filled up with `pad` on the right."""
    out = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
