"""Batches bounded in padded tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from citewell.inference.batches import padded, token_batches


@given(st.lists(st.integers(0, 100)), st.integers(1, 400))
def test_every_text_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(token_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    order = [lengths[i] for batch in batches for i in batch]
    assert order == sorted(order, reverse=True)


def test_rows_are_filled_up_on_the_right() -> None:
    np.testing.assert_array_equal(padded([[1, 2, 3], [4], []], 9), [[1, 2, 3], [4, 9, 9], [9, 9, 9]])
