"""The metrics are those of ir-measures; intervals and tests behave as their definitions say."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.lab.metrics import METRICS, compare, estimate, means, per_query


def _reference(metric: str) -> ir_measures.measures.Measure:
    name, _, cutoff = metric.partition("@")
    return ir_measures.RR if name == "MRR" else {"R": ir_measures.R, "NDCG": ir_measures.nDCG}[name] @ int(cutoff)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_every_metric_is_what_ir_measures_computes(ranks: list[int]) -> None:
    """Rank 0 is a relevant paper that was not returned; 60 documents are returned for every query."""
    qrels = [ir_measures.Qrel(f"q{query}", "gold", 1) for query in range(len(ranks))]
    run = [
        ir_measures.ScoredDoc(f"q{query}", "gold" if place == rank else f"d{place}", -float(place))
        for query, rank in enumerate(ranks)
        for place in range(1, 61)
    ]
    measures = {metric: _reference(metric) for metric in METRICS}
    expected = ir_measures.calc_aggregate(measures.values(), qrels, run)
    computed = means(np.array(ranks))
    for metric, measure in measures.items():
        assert computed[metric] == pytest.approx(100 * expected[measure]), metric


def test_values_of_each_query() -> None:
    ranks = np.array([1, 4, 0])
    assert per_query("MRR", ranks).tolist() == [1.0, 0.25, 0.0]
    assert per_query("R@3", ranks).tolist() == [1.0, 0.0, 0.0]
    assert per_query("NDCG@5", ranks) == pytest.approx([1.0, 1 / np.log2(5), 0.0])
    with pytest.raises(ValueError, match="'P@5'"):
        per_query("P@5", ranks)


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        ranks = np.where(rng.random(150) < 0.3, 1, 0)
        interval = estimate("R@5", ranks, rng, resamples=400)
        covered += interval.low <= 30.0 <= interval.high
    assert 0.90 <= covered / 200 <= 0.985


def test_clusters_widen_the_interval_when_their_queries_agree() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 25)
    ranks = np.repeat(np.where(rng.random(40) < 0.4, 1, 0), 25)
    alone = estimate("MRR", ranks, np.random.default_rng(1))
    together = estimate("MRR", ranks, np.random.default_rng(1), clusters)
    assert alone.mean == together.mean
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_equal_systems_seldom_look_different() -> None:
    small = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        small += compare("MRR", rng.integers(1, 20, 80), rng.integers(1, 20, 80), rng).p < 0.05
    assert small <= 12


def test_a_better_system_is_found_better_and_the_sign_is_right() -> None:
    rng = np.random.default_rng(3)
    worse = rng.integers(2, 30, 300)
    better = np.maximum(1, worse - rng.integers(0, 3, 300))
    difference = compare("MRR", better, worse, rng)
    assert 0 < difference.low < difference.mean < difference.high
    assert difference.p < 0.001
    assert compare("MRR", worse, worse, rng).p == 1.0
    with pytest.raises(ValueError, match="same queries"):
        compare("MRR", better, worse[:-1], rng)
