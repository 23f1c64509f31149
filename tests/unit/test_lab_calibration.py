"""Calibration: the fit recovers the model behind the data, and reliability and thresholds are computed correctly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.lab.calibration import Items, fit, kept, reliability
from citewell.lab.dataset import read_dataset
from citewell.lab.everyday import everyday_sentences, with_everyday
from citewell.lab.protocol import Mode, make_task
from tests.lab_sets import invented, write_lines


def items(count: int = 20_000, seed: int = 3) -> Items:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2)) * [1.0, 50.0] + [0.0, 100.0]
    logits = 1.5 * features[:, 0] - 0.02 * (features[:, 1] - 100) - 2.0
    right = rng.random(count) < 1 / (1 + np.exp(-logits))
    return Items(("a", "b"), features, right, np.arange(count) // 10, np.zeros(count, np.bool_))


def test_the_fit_finds_the_weights_that_made_the_data() -> None:
    fitted = fit(items(), ("a", "b"))
    assert fitted.weights == pytest.approx((1.5, -0.02), rel=0.08)
    assert fitted.bias == pytest.approx(0.0, abs=0.15)  # -2 + 0.02 · 100
    other = items(seed=4)
    assert reliability(fitted.confidence(other), other.right).error < 0.015


def test_a_feature_left_out_is_not_read() -> None:
    fitted = fit(items(), ("a",))
    changed = items()
    changed.features[:, 1] = 0
    np.testing.assert_array_equal(fitted.confidence(items()), fitted.confidence(changed))


def test_overconfidence_is_measured() -> None:
    right = np.arange(1000) % 2 == 0
    found = reliability(np.full(1000, 0.9), right)
    assert found.error == pytest.approx(0.4)
    assert found.brier == pytest.approx(0.5 * 0.01 + 0.5 * 0.81)
    (one,) = found.bins
    assert (one.said, one.right, one.count) == (pytest.approx(0.9), 0.5, 1000)
    assert one.low < 0.5 < one.high


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_every_item_is_in_one_bin(pairs: list[tuple[float, bool]]) -> None:
    confidence, right = np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])
    found = reliability(confidence, right)
    assert sum(one.count for one in found.bins) == len(pairs)
    assert 0 <= found.error <= 1
    assert all(one.low <= one.right <= one.high for one in found.bins)


def test_a_threshold_keeps_what_is_at_least_as_sure() -> None:
    asked = Items(
        ("x",),
        np.zeros((6, 1)),
        np.array([True, False, False, True, False, False]),
        np.array([0, 0, 1, 1, 2, 2]),
        np.array([False, False, False, False, True, True]),
    )
    everything, some = kept(asked, np.array([0.9, 0.5, 0.2, 0.3, 0.1, 0.6]), (0.0, 0.5))
    assert (everything.items, everything.right, everything.found, everything.empty) == (2.0, 0.5, 1.0, 0.0)
    # Two items of the first query are kept, none of the second, and the more confident one of the unrelated query.
    assert (some.items, some.right, some.found, some.empty, some.empty_unrelated) == (1.0, 0.5, 0.5, 0.5, 0.0)


def test_everyday_sentences_change_nothing_else_of_a_set(tmp_path) -> None:  # type: ignore[no-untyped-def]
    data = read_dataset(write_lines(tmp_path, *invented()))
    grown, rows = with_everyday(data, everyday_sentences())
    before, after = (make_task(each, "test", Mode.INDUCTIVE) for each in (data, grown))
    np.testing.assert_array_equal(before.queries, after.queries)
    np.testing.assert_array_equal(before.knowledge, after.knowledge)
    draft = len(data.papers)
    eligible = list(after.eligible(grown, np.concatenate([after.queries, rows])))
    assert not any(mask[draft] for mask in eligible), "the draft is never an answer"
    assert all(mask.any() for mask in eligible[-len(rows) :]), "every paper is older than the draft"
    assert [grown.contexts.texts[int(row)] for row in rows] == everyday_sentences()
