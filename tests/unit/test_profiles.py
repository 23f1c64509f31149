"""The profile algebra: eq. 3–5 as written, and sums from which contributions can be removed exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from citewell.profiler.profiles import (
    LIMIT,
    ProfileSums,
    ProfileWeights,
    QueryWeights,
    from_fixed,
    normalised,
    pair_mean,
    profile,
    query_vector,
    scores,
    sum_citations,
    to_fixed,
)

PAPERS, DIMENSION = 5, 6
vectors = arrays(np.float64, DIMENSION, elements=st.floats(-4, 4))
weight = st.floats(0, 3)
pairs = st.lists(st.tuples(st.integers(0, PAPERS - 1), vectors, vectors), max_size=12)


def _sums(citing: list[tuple[int, np.ndarray, np.ndarray]]) -> ProfileSums:
    rows = [(cited, to_fixed(s), to_fixed(v)) for cited, s, v in citing]
    shape = (len(rows), DIMENSION)
    return sum_citations(
        np.array([cited for cited, _, _ in rows], np.int64),
        np.array([s for _, s, _ in rows], np.int64).reshape(shape),
        np.array([v for _, _, v in rows], np.int64).reshape(shape),
        PAPERS,
    )


def _equal(one: ProfileSums, other: ProfileSums) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("contexts", "contents", "count"))


@given(pairs, weight, weight, arrays(np.float32, (PAPERS, DIMENSION), elements=st.floats(-4, 4, width=32)))
def test_profiles_are_eq_3(
    citing: list[tuple[int, np.ndarray, np.ndarray]], alpha: float, beta: float, content: np.ndarray
) -> None:
    made = profile(content, _sums(citing), ProfileWeights(alpha, beta))
    for paper in range(PAPERS):
        said = [alpha * s + beta * v for cited, s, v in citing if cited == paper]
        expected = content[paper] + (np.mean(said, axis=0) if said else 0)
        np.testing.assert_allclose(made[paper], expected, atol=1e-5)


@given(pairs, st.randoms())
def test_sums_do_not_depend_on_the_order(
    citing: list[tuple[int, np.ndarray, np.ndarray]], random: np.random.Generator
) -> None:
    shuffled = list(citing)
    random.shuffle(shuffled)
    assert _equal(_sums(citing), _sums(shuffled))


@given(pairs, pairs)
def test_leaving_citations_out_is_exact(
    kept: list[tuple[int, np.ndarray, np.ndarray]], left_out: list[tuple[int, np.ndarray, np.ndarray]]
) -> None:
    assert _equal(_sums(kept + left_out) - _sums(left_out), _sums(kept))
    assert _equal(_sums(kept) + _sums(left_out), _sums(kept + left_out))


@given(pairs)
def test_one_paper_is_a_row_of_the_stack(citing: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
    weights, content = ProfileWeights(0.8, 0.2), np.ones((PAPERS, DIMENSION), np.float32)
    stack, sums = profile(content, _sums(citing), weights), _sums(citing)
    for paper in range(PAPERS):
        np.testing.assert_array_equal(profile(content[paper], sums[paper], weights), stack[paper])


@given(st.lists(vectors, min_size=1, max_size=9), st.randoms())
def test_the_mean_of_a_pair_is_near_and_order_free(contexts: list[np.ndarray], random: np.random.Generator) -> None:
    fixed = to_fixed(np.array(contexts))
    np.testing.assert_allclose(from_fixed(pair_mean(fixed)), np.mean(contexts, axis=0), atol=2e-7)
    shuffled = list(fixed)
    random.shuffle(shuffled)
    np.testing.assert_array_equal(pair_mean(np.array(shuffled)), pair_mean(fixed))


@given(vectors)
def test_fixed_point_is_as_fine_as_float32_and_fits_32_bits(vector: np.ndarray) -> None:
    fixed = to_fixed(vector)
    np.testing.assert_allclose(from_fixed(fixed), vector, atol=2.0**-25)
    assert np.abs(fixed).max() < 2**31
    np.testing.assert_array_equal(to_fixed(from_fixed(fixed)), fixed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, LIMIT, -LIMIT])
def test_what_fixed_point_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        to_fixed(np.array([0.0, value]))


def test_a_hundred_thousand_citations_do_not_drift() -> None:
    rng = np.random.default_rng(0)
    s, v = rng.normal(size=(2, 100_000, DIMENSION)) / 4
    content = rng.normal(size=DIMENSION).astype(np.float32)
    sums = sum_citations(np.zeros(100_000, np.int64), to_fixed(s), to_fixed(v), 1)[0]
    expected = content + 0.8 * s.mean(axis=0) + 0.2 * v.mean(axis=0)
    np.testing.assert_allclose(profile(content, sums, ProfileWeights(0.8, 0.2)), expected, atol=1e-6)


@given(vectors, vectors, st.floats(0.01, 2), st.floats(0.01, 2))
def test_queries_are_eq_4_and_only_the_ratio_counts(
    context: np.ndarray, content: np.ndarray, gamma: float, delta: float
) -> None:
    query = query_vector(context, content, QueryWeights(gamma, delta))
    np.testing.assert_allclose(query, gamma * context + delta * content, atol=1e-5)
    assume(np.linalg.norm(query) > 0.1)  # where the halves cancel out, a direction is what rounding leaves
    doubled = query_vector(context, content, QueryWeights(2 * gamma, 2 * delta))
    np.testing.assert_allclose(normalised(doubled), normalised(query), atol=1e-5)


def test_half_a_query_is_the_half_that_is_there() -> None:
    part, weights = np.arange(3, dtype=np.float32), QueryWeights(0.6, 0.4)
    np.testing.assert_array_equal(query_vector(part, None, weights), part)
    np.testing.assert_array_equal(query_vector(None, part, weights), part)
    with pytest.raises(ValueError, match="context or a title"):
        query_vector(None, None, weights)


def test_scores_are_cosines_and_a_zero_vector_scores_zero() -> None:
    cosine = scores(np.array([3.0, 0.0]), np.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(cosine, [1, 0, -1, 0, np.sqrt(0.5)], atol=1e-6)


def test_nobody_cites_is_cold_start() -> None:
    content = np.ones((2, DIMENSION), np.float32)
    np.testing.assert_array_equal(profile(content, ProfileSums.zero(DIMENSION, 2), ProfileWeights(0.8, 0.2)), content)
    np.testing.assert_array_equal(profile(content[0], ProfileSums.zero(DIMENSION), ProfileWeights(1, 1)), content[0])
