"""The inverted index gives the scores of single bags, after any history of changes and merges."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.index import postings
from citewell.index.hybrid import word_parts
from citewell.index.postings import Postings, merge
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms

ROWS, WORDS = 40, 30

bags = st.dictionaries(st.integers(0, WORDS), st.integers(1, 9).map(lambda half: half / 2), max_size=12).map(Terms.of)
lengths = st.integers(0, 200).map(float)
batches = st.dictionaries(st.integers(0, ROWS - 1), st.tuples(bags, lengths), min_size=1, max_size=20)
removals = st.lists(st.integers(0, ROWS + 5), unique=True, min_size=1)
queries = st.builds(
    lambda weights, mean: LexicalQuery(Terms.of(weights), 3.0, k1=1.2, b=0.4, mean_length=mean),
    st.dictionaries(st.integers(0, WORDS + 5), st.integers(1, 999).map(lambda share: share / 1000), max_size=15),
    st.sampled_from([0.0, 17.0, 120.0]),
)


@settings(max_examples=200, deadline=None)
@given(history=st.lists(st.one_of(batches, removals), max_size=12), query=queries, tidy=st.sampled_from([1, 3, 100]))
def test_scores_depend_on_the_bags_alone(history: list[object], query: LexicalQuery, tidy: int) -> None:
    held, known = Postings(), dict[int, tuple[Terms, float]]()
    for number, change in enumerate(history, 1):
        if isinstance(change, dict):
            held.put(np.array(list(change), np.int64), list(change.values()))
            known |= change
        else:
            held.remove(np.array(change, np.int64))
            known = {row: bag for row, bag in known.items() if row not in change}
        if number % tidy == 0:
            held.tidy()
    fresh = Postings()
    fresh.put(np.array(list(known), np.int64), list(known.values()))
    scores = held.scores(query, ROWS)
    assert np.array_equal(scores, fresh.scores(query, ROWS))
    expected = [word_parts(query, *known.get(row, (NO_TERMS, 0.0))) for row in range(ROWS)]
    assert scores.tolist() == [score for score, _ in expected]  # to the last bit
    matched = held.matched(query, np.arange(ROWS), 5)
    assert matched == [parts.largest(5) for _, parts in expected]


def test_replaced_bags_are_given_back_and_segments_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postings, "LARGEST", 5_000)
    held, draw = Postings(), np.random.default_rng(1)
    for _ in range(300):
        rows = draw.choice(1000, 50, replace=False)
        bag = Terms.of({int(word): 1.0 for word in draw.integers(0, 500, 12)})
        held.put(rows, [(bag, 12.0)] * len(rows))
        held.tidy()
    live = 12 * 1000
    assert held.entries < 2.5 * live
    assert len([segment for segment in held._segments if segment]) < 20
    assert max(segment.entries for segment in held._segments if segment) < postings.FAN * 5_000
    held.remove(np.arange(1000))
    assert (held.entries, held.bytes) == (0, 0)


def test_a_search_sees_the_old_segments_while_they_are_merged() -> None:
    held = Postings()
    query = LexicalQuery(Terms.of({1: 0.5, 7: 0.5}), 1.0, 1.2, 0.4, 10.0)
    for number in range(8):
        held.put(np.array([number]), [(Terms.of({number: 1.0, 7: 2.0}), 3.0)])
    before = held.scores(query, 8)
    due = held.due()
    merged = merge(due)
    assert len(due) == 8
    assert np.array_equal(held.scores(query, 8), before)
    held.replace(due, merged)
    assert np.array_equal(held.scores(query, 8), before)
    assert not held.due()


def test_large_results_are_added_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Postings()
    for start in range(0, 300, 100):
        rows = np.arange(start, start + 100)
        held.put(rows, [(Terms.of({1: 1.0 + row % 7, 2: 1.0}), 5.0) for row in rows.tolist()])
    query = LexicalQuery(Terms.of({1: 0.7, 2: 0.3}), 1.0, 1.2, 0.4, 10.0)
    whole = held.scores(query, 300)
    monkeypatch.setattr(postings, "_BATCH", 50)
    assert np.array_equal(held.scores(query, 300), whole)
    assert len(set(itertools.islice(whole.tolist(), 7))) == 7
