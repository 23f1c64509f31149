"""The lexical score that index, profiler and lab share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.runtime.errors import InvalidField
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms, contributions, lexical_score, saturated
from citewell.types.messages import (
    lexical_query_from_message,
    lexical_query_to_message,
    terms_from_message,
    terms_to_message,
)
from citewell.types.v1 import terms_pb2

bags = st.dictionaries(st.integers(0, 30), st.integers(1, 50), max_size=20)


def query(terms: dict[int, float], mean_length: float = 100.0) -> LexicalQuery:
    return LexicalQuery(Terms.of(terms), weight=3.0, k1=1.2, b=0.4, mean_length=mean_length)


def test_the_score_is_bm25_of_the_shared_terms() -> None:
    asked = query({7: 0.25, 9: 0.5, 11: 0.25})
    paper = Terms.of({3: 10.0, 7: 2.0, 9: 1.5})
    norm = 1.2 * (1 - 0.4 + 0.4 * 50 / 100)
    told = contributions(asked, paper, 50.0)
    assert told.ids.tolist() == [7, 9]
    assert told.values == pytest.approx([0.25 * 2 / (2 + norm), 0.5 * 1.5 / (1.5 + norm)])
    assert lexical_score(asked, paper, 50.0) == pytest.approx(0.25 * 2 / (2 + norm) + 0.5 * 1.5 / (1.5 + norm))


@given(bags, bags)
def test_it_agrees_with_the_sum_written_out(asked: dict[int, int], held: dict[int, int]) -> None:
    total, length = sum(asked.values()), sum(held.values())
    asking = query({term: count / total for term, count in asked.items()})
    norm = 1.2 * (0.6 + 0.4 * length / 100)
    expected = math.fsum(
        asked[term] / total * held[term] / (held[term] + norm) for term in sorted(asked.keys() & held.keys())
    )
    score = lexical_score(asking, Terms.of(held), length)
    assert score == pytest.approx(expected, abs=1e-6)
    assert 0 <= score < 1 + 1e-6


def test_without_statistics_every_paper_has_mean_length() -> None:
    asked = query({7: 1.0}, mean_length=0.0)
    assert lexical_score(asked, Terms.of({7: 1.0}), 1e9) == pytest.approx(1 / 2.2)


def test_lengths_may_differ_by_count() -> None:
    counts = np.array([1.0, 1.0], np.float32)
    told = saturated(counts, np.array([100.0, 400.0], np.float32), query({}))
    assert told == pytest.approx([1 / 2.2, 1 / (1 + 1.2 * (0.6 + 1.6))])


@pytest.mark.parametrize(("asked", "held"), [({}, {1: 1.0}), ({1: 1.0}, {}), ({1: 1.0}, {2: 1.0})])
def test_nothing_shared_scores_zero(asked: dict[int, float], held: dict[int, float]) -> None:
    assert lexical_score(query(asked), Terms.of(held), 10.0) == 0.0


def test_the_largest_are_kept_in_the_order_of_ids_and_ties_go_to_the_smallest() -> None:
    bag = Terms.of({5: 1.0, 1: 2.0, 9: 1.0, 3: 1.0})
    assert bag.largest(2) == Terms.of({1: 2.0, 3: 1.0})
    assert bag.largest(4) is bag
    assert bag.largest(0) == NO_TERMS


@given(bags, st.integers(1, 25))
def test_the_largest_are_those_of_a_sort(held: dict[int, int], limit: int) -> None:
    expected = sorted(held, key=lambda term: (-held[term], term))[:limit]
    assert Terms.of(held).largest(limit) == Terms.of({term: held[term] for term in expected})


def test_a_query_survives_the_wire() -> None:
    asked = query({2**32 - 1: 0.75, 7: 0.25})
    assert lexical_query_from_message(lexical_query_to_message(asked)) == asked
    assert terms_from_message(terms_to_message(NO_TERMS)) == NO_TERMS


@pytest.mark.parametrize(
    ("ids", "values", "field", "told"),
    [
        ([1, 2], [1.0], "terms.values", "1 values"),
        ([2, 1], [1.0, 1.0], "terms.ids[1]", "1"),
        ([1, 1], [1.0, 1.0], "terms.ids[1]", "1"),
        ([1, 2], [1.0, float("nan")], "terms.values[1]", "nan"),
        ([1], [-1.0], "terms.values[0]", "-1"),
    ],
)
def test_terms_that_are_none_are_refused_by_name(ids: list[int], values: list[float], field: str, told: str) -> None:
    with pytest.raises(InvalidField, match="terms") as refused:
        terms_from_message(terms_pb2.Terms(ids=ids, values=values))
    assert refused.value.field == field
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("weight", -1.0), ("k1", float("inf")), ("b", 1.5), ("b", -0.1), ("mean_length", float("nan")), ("k1", -2.0)],
)
def test_a_query_that_is_none_is_refused_by_name(name: str, value: float) -> None:
    message = lexical_query_to_message(query({1: 1.0}))
    setattr(message, name, value)
    with pytest.raises(InvalidField) as refused:
        lexical_query_from_message(message)
    assert refused.value.field == f"lexical.{name}"
