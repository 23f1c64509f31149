"""Ranks, priors and negatives of candidate lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.lab.davinci.lists import CandidateLists, NegativeSampling
from citewell.lab.davinci.priors import PriorKind, rank_prior

LISTS = CandidateLists(
    np.array([10, 11, 12], np.int32),
    np.array([[5, 6, 7, 8], [1, 2, 3, 4], [9, 5, -1, -1]], np.int32),
    np.array([[0.9, 0.8, 0.8, 0.1], [0.5, 0.4, 0.3, 0.2], [0.7, 0.6, 0.0, 0.0]], np.float32),
    np.array([7, 9, 9], np.int32),
    np.array([0.8, 0.05, 0.7], np.float32),
)


def test_ranks_in_retrieval_order() -> None:
    assert LISTS.ranks().tolist() == [3, 0, 1]
    assert LISTS.cut(2).ranks().tolist() == [0, 0, 1]


def test_reordering_breaks_ties_by_retrieval_order() -> None:
    order = np.array([[1, 2, 2, 0], [1, 1, 1, 1], [0, 5, 99, 99]], np.float32)
    assert LISTS.ranks(order).tolist() == [2, 0, 2]


@given(st.integers(0, 2**31), st.integers(2, 30))
@settings(max_examples=50, deadline=None)
def test_ranks_agree_with_sorting(seed: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    papers = np.stack([rng.permutation(60)[:depth] for _ in range(8)]).astype(np.int32)
    gold = rng.integers(0, 60, 8).astype(np.int32)
    lists = CandidateLists(
        np.arange(8, dtype=np.int32), papers, np.zeros((8, depth), np.float32), gold, np.zeros(8, np.float32)
    )
    order = rng.integers(0, 5, (8, depth)).astype(np.float32)
    for row, rank in enumerate(lists.ranks(order)):
        best_first = papers[row][np.argsort(-order[row], kind="stable")].tolist()
        assert rank == (best_first.index(gold[row]) + 1 if gold[row] in best_first else 0)


def test_priors_follow_eq_6_and_give_an_absent_positive_rank_k_plus_1() -> None:
    priors = LISTS.priors(1, np.array([9, 1, 4], np.int32))
    ranks = priors[:, list(PriorKind).index(PriorKind.RANK)]
    np.testing.assert_allclose(ranks, [0.95**5, 0.95, 0.95**4], rtol=1e-6)
    np.testing.assert_allclose(priors[:, list(PriorKind).index(PriorKind.SCORE)], [0.05, 0.5, 0.2], rtol=1e-6)


def test_the_softmax_prior_sums_to_one_over_the_list() -> None:
    priors = LISTS.priors(2, np.array([9, 5], np.int32))
    softmax = priors[:, list(PriorKind).index(PriorKind.SOFTMAX)]
    assert softmax.sum() == pytest.approx(1.0)
    assert softmax[0] / softmax[1] == pytest.approx(np.exp(0.1), rel=1e-5)


def test_ranks_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        rank_prior(np.array([0]))


@given(st.integers(0, 2**31), st.integers(1, 15), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_negatives_are_distinct_listed_and_never_the_cited_paper(seed: int, count: int, share: float) -> None:
    papers = np.arange(40, dtype=np.int32)[None]
    lists = CandidateLists(
        np.zeros(1, np.int32), papers, np.zeros((1, 40), np.float32), np.array([3], np.int32), np.zeros(1, np.float32)
    )
    drawn = NegativeSampling(count, share, hard_depth=20).draw(lists, 0, np.random.default_rng(seed))
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert 3 not in drawn
    assert np.isin(drawn, papers).all()
    assert np.count_nonzero(drawn <= 20) >= round(count * share)


def test_easy_negatives_come_from_other_lists() -> None:
    papers = np.arange(60, dtype=np.int32).reshape(3, 20)
    rows, gold = np.zeros(3, np.int32), np.array([3, 25, 45], np.int32)
    lists = CandidateLists(rows, papers, np.zeros((3, 20), np.float32), gold, np.zeros(3, np.float32))
    sampling = NegativeSampling(4, hard_share=0.25, hard_depth=5, easy_share=0.5)
    for seed in range(20):
        drawn = sampling.draw(lists, 0, np.random.default_rng(seed))
        assert len(set(drawn.tolist())) == 4
        assert np.count_nonzero(drawn >= 20) == 2
        assert drawn[0] <= 5


def test_lists_survive_a_file(tmp_path: Path) -> None:
    LISTS.save(tmp_path / "lists.npz")
    read = CandidateLists.load(tmp_path / "lists.npz")
    for name in CandidateLists.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(read, name), getattr(LISTS, name))
