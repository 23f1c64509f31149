"""Encodes pairs; what the first layers make of a side, read apart, is computed once and kept.

pairs ─▶ sides ─▶ states: kept ones, and those of new sides (a query once, however many pairs it stands in)
              └─▶ states of pairs ─▶ the other layers ─▶ e
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from citewell.inference.sessions import Session

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Side = tuple[int, bytes]
"""Which side it is (0 the query's, 1 the candidate's), and its tokens."""

# Half precision: a state then differs by a thousandth of itself, a score by less than runtimes differ.
_Kept = NDArray[np.float16]


class PairEncoder:
    """Two graphs of `davinci_graph` as one encoder. Not for two threads at once."""

    def __init__(
        self,
        sides: Session,
        pairs: Session,
        *,
        apart: bool,
        kept_bytes: int,
        on_sides: Callable[[int, int], None] = lambda kept, computed: None,
    ) -> None:
        """`apart`: the model has layers that read the sides apart. `on_sides` hears how many sides were kept."""
        self._sides, self._pairs, self._apart, self._on_sides = sides, pairs, apart, on_sides
        self._kept: OrderedDict[Side, _Kept] = OrderedDict()
        self._bytes, self._most_bytes = 0, kept_bytes

    def encode(self, input_ids: Ints, attention_mask: Ints, token_type_ids: Ints) -> Floats:
        """e of each pair, `[pairs, d_enc]`."""
        if self._apart:
            states = self._states(input_ids, attention_mask, token_type_ids)
        else:
            states = self._computed(input_ids, attention_mask, token_type_ids)
        (e,) = self._pairs.run({"states": states, "attention_mask": attention_mask})
        return e

    def _computed(self, input_ids: Ints, attention_mask: Ints, token_type_ids: Ints) -> Floats:
        feed = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self._sides.run(feed)[0]

    def _states(self, input_ids: Ints, attention_mask: Ints, token_type_ids: Ints) -> Floats:
        ends = attention_mask.sum(axis=1)
        starts = ends - token_type_ids.sum(axis=1)
        places: list[tuple[Side, int, int, int]] = []
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            ids = input_ids[row]
            places += [((0, ids[:start].tobytes()), row, 0, start), ((1, ids[start:end].tobytes()), row, start, end)]
        found = self._of([side for side, *_ in places])
        hidden = next(iter(found.values())).shape[1]
        states = np.zeros((*input_ids.shape, hidden), np.float32)
        for side, row, start, end in places:
            states[row, start:end] = found[side]
        return states

    def _of(self, sides: Sequence[Side]) -> dict[Side, _Kept]:
        """The states of each side, computed where they are not kept."""
        found = {side: self._kept[side] for side in sides if side in self._kept}
        new = list(dict.fromkeys(side for side in sides if side not in found))
        for kind in (0, 1):
            found |= self._read([side for side in new if side[0] == kind])
        self._on_sides(len(found) - len(new), len(new))
        for side in found:
            self._keep(side, found[side])
        return found

    def _read(self, sides: Sequence[Side]) -> dict[Side, _Kept]:
        if not sides:
            return {}
        rows = [np.frombuffer(tokens, np.int64) for _, tokens in sides]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), int(lengths.max())), np.int64)
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        ids[mask.astype(bool)] = np.concatenate(rows)
        states = self._computed(ids, mask, mask * sides[0][0]).astype(np.float16)
        return {side: states[i, :length].copy() for i, (side, length) in enumerate(zip(sides, lengths, strict=True))}

    def _keep(self, side: Side, states: _Kept) -> None:
        if side not in self._kept:
            self._bytes += states.nbytes
            self._kept[side] = states
        self._kept.move_to_end(side)
        while self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
