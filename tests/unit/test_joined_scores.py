"""The order of what the reranker read, by its log-odds and the second phase's scores together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.recommender.joined_scores import log_odds, reordered
from citewell.recommender.ports import Candidate, Reranked, SecondPhase
from citewell.scholarly.papers import Paper


def candidates(*second: float | None) -> list[Candidate]:
    """Papers a, b, … in this order, with these scores of the second phase."""
    return [
        Candidate(Paper(id), rank, 1.0, second=None if score is None else SecondPhase(score, rank, ()))
        for rank, (id, score) in enumerate(zip("abcdef", second, strict=False), 1)
    ]


def opinions(*scores: float | None) -> dict[str, Reranked]:
    return {id: Reranked(score, 0.9) for id, score in zip("abcdef", scores, strict=False)}


def test_a_lead_in_the_second_phase_outweighs_a_smaller_one_of_the_reranker() -> None:
    found = reordered(candidates(3.0, 1.0, 0.0), opinions(0.4, 0.6, 0.5), 1.0)
    assert found.order == ("a", "b", "c")
    assert found.rerank_ranks == {"a": 3, "c": 2, "b": 1}
    assert found.ranks == {"a": 1, "b": 2, "c": 3}
    assert found.joined["a"] == pytest.approx(math.log(0.4 / 0.6) + 3.0)
    assert reordered(candidates(3.0, 1.0, 0.0), opinions(0.4, 0.6, 0.5), 0.1).order == ("b", "c", "a")


def test_what_was_not_read_follows_as_retrieved_and_ties_are_by_id() -> None:
    found = reordered(candidates(0.0, 9.0, 1.0, 1.0), opinions(None, None, 0.5, 0.5), 1.0)
    assert found.order == ("c", "d", "a", "b")
    assert found.joined.keys() == {"c", "d"}


@pytest.mark.parametrize("second", [(None, None, None), (2.0, None, 1.0)])
def test_without_a_second_phase_for_all_that_was_read_the_reranker_decides(second: tuple[float | None, ...]) -> None:
    found = reordered(candidates(*second), opinions(0.1, 0.2, 0.3), 1.0)
    assert (found.order, found.joined) == (("c", "b", "a"), {})
    assert found.ranks == found.rerank_ranks


def test_nothing_read_keeps_the_order() -> None:
    found = reordered(candidates(1.0, 2.0), {}, 1.0)
    assert (found.order, found.ranks, found.joined) == (("a", "b"), {}, {})


@given(st.floats(0, 1))
def test_log_odds_are_finite(score: float) -> None:
    assert math.isfinite(log_odds(score))
