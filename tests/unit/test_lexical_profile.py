"""The lexical public profile without a database: counts, bags of words, and the weights of a query's words."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.profiler.ledger.statistics import NO_STATISTICS, Frequencies, Statistics
from citewell.profiler.lexical import (
    CHOSEN_BAG,
    CHOSEN_TERMS,
    NO_COUNTS,
    BagRules,
    Counts,
    FieldWeights,
    TermWeights,
    added,
    bag,
    count_text,
    grouped,
    query_parts,
    query_terms,
)
from citewell.profiler.query_words import WordWeights, weigh_words
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import Terms
from citewell.scholarly.limits import MAX_QUERY_TERMS
from citewell.scholarly.queries import Query
from citewell.scholarly.words import term_id

TERMS = st.integers(2**32 - 5, 2**32 - 1) | st.integers(0, 5)
SIGNED = st.dictionaries(TERMS, st.integers(-3, 3), max_size=6)


def as_dict(counts: Counts) -> dict[int, int]:
    return dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))


@given(st.lists(SIGNED, max_size=5))
def test_counts_add_up_and_those_that_cancel_out_are_gone(parts: list[dict[int, int]]) -> None:
    expected: Counter[int] = Counter()
    for part in parts:
        for term, count in part.items():
            expected[term] += count
    total = added([Counts.of(part) for part in parts])
    assert as_dict(total) == {term: count for term, count in expected.items() if count}
    assert total.ids.tolist() == sorted(total.ids.tolist())
    assert total.ids.dtype == np.uint32


@given(st.lists(st.tuples(st.integers(0, 3), TERMS, st.integers(-2, 2)), max_size=20))
def test_counts_are_grouped_without_groups_that_cancel_out(rows: list[tuple[int, int, int]]) -> None:
    expected: dict[int, Counter[int]] = {}
    for group, term, count in rows:
        expected.setdefault(group, Counter())[term] += count
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    found = grouped(np.array(columns[0], np.int64), np.array(columns[1], np.uint32), np.array(columns[2], np.int64))
    without_zeros = {group: {term: n for term, n in counts.items() if n} for group, counts in expected.items()}
    assert {group: as_dict(counts) for group, counts in found.items()} == {
        group: counts for group, counts in without_zeros.items() if counts
    }


@pytest.mark.parametrize("word", ["targetcit", "Targetcit", "TARGETCITS"])
def test_a_word_like_the_marker_is_neither_the_marker_nor_a_term(word: str) -> None:
    text = f"{word} grammar parser TARGETCIT"
    nearest = {term: weights[0] for term, weights in query_parts(text, "").items()}
    for found in (query_terms(text, "", "", CHOSEN_TERMS), nearest):
        assert set(found) == {term_id("grammar"), term_id("parser")}
        assert found[term_id("parser")] > found[term_id("grammar")]


def test_a_bag_weighs_fields_and_its_length_counts_what_is_cut_off() -> None:
    own = count_text("Parsing trees", "trees of words")
    said = Counts.of({term_id("tree"): 3, term_id("forest"): 4})
    terms, length = bag(own, said, CHOSEN_BAG)
    expected = {"parsing": 3.0, "tree": 3.0 + 1.0 + 1.5, "word": 1.0, "forest": 2.0}
    assert terms == Terms.of({term_id(word): count for word, count in expected.items()})
    assert length == 11.5
    cut, whole = bag(own, said, BagRules(max_terms=2))
    assert (cut, whole) == (Terms.of({term_id("tree"): 5.5, term_id("parsing"): 3.0}), 11.5)
    only_said, _ = bag(own, said, BagRules(FieldWeights(0, 0, 1)))
    assert set(only_said.ids.tolist()) == {term_id("tree"), term_id("forest")}


def test_near_words_and_rare_words_count_more_and_all_count_one() -> None:
    common, rare = term_id("network"), term_id("parser")
    statistics = Statistics("v", Frequencies(100, 5000.0, Counts.of({common: 90, rare: 2})))
    query = weigh_words(Query("network parser TARGETCIT lexicon", title="Network"), WordWeights(), statistics)
    weights = dict(zip(query.terms.ids.tolist(), query.terms.values.tolist(), strict=True))
    idf = {term: np.log(1 + (100 - df + 0.5) / (df + 0.5)) for term, df in ((common, 90), (rare, 2))}
    unknown = np.log(1 + 100.5 / 0.5)
    near, next_to_it = 0.2 + 0.8 * np.exp(-1 / 5), 0.2 + 0.8 * np.exp(-2 / 5)
    raw = {common: (next_to_it + 0.5) * idf[common], rare: near * idf[rare], term_id("lexicon"): near * unknown}
    assert weights == pytest.approx({term: value / sum(raw.values()) for term, value in raw.items()})
    assert (query.mean_length, query.k1, query.b, query.weight) == (50.0, 1.2, 0.4, 3.0)


def test_a_query_without_context_and_without_statistics() -> None:
    query = weigh_words(Query(title="parser", abstract="lexicon"), WordWeights(), NO_STATISTICS)
    weights = dict(zip(query.terms.ids.tolist(), query.terms.values.tolist(), strict=True))
    assert weights == pytest.approx({term_id("parser"): 1 / 1.5, term_id("lexicon"): 0.5 / 1.5})
    assert query.mean_length == 0.0
    assert query_terms("", "", "of the", TermWeights(abstract=1.0)) == {}
    assert not len(weigh_words(Query(title="of the"), WordWeights(), NO_STATISTICS).terms)


def test_words_as_of_a_date_are_weighed_by_papers_of_earlier_years() -> None:
    years = {
        2018: Frequencies(2, 10.0, Counts.of({1: 2})),
        2019: Frequencies(1, 20.0, Counts.of({1: 1, 2: 1})),
        2020: Frequencies(5, 100.0, Counts.of({2: 5})),
    }
    statistics = Statistics("v", Frequencies(9, 200.0, Counts.of({1: 9})), by_year=years)
    before = statistics.as_of(PartialDate(2020, 5))
    assert (before.papers, before.mean_length, before.version) == (3, 10.0, "v before 2020")
    assert before.frequencies.terms == Counts.of({1: 3, 2: 1})
    assert statistics.as_of(PartialDate(2018)).frequencies == Frequencies(0, 0, NO_COUNTS)
    assert statistics.as_of(PartialDate(0)) is statistics


def test_whatever_dates_are_asked_for_only_as_many_statistics_are_held_as_years_have_papers() -> None:
    years = {year: Frequencies(1, 1.0, Counts.of(dict.fromkeys(range(10000), 1))) for year in (2018, 2019)}
    statistics = Statistics("v", Frequencies(2, 2.0), by_year=years)
    tracemalloc.start()
    for year in range(1000, 3000):
        assert statistics.as_of(PartialDate(year)).papers == (year > 2018) + (year > 2019)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2_000_000


def test_a_query_of_very_many_words_keeps_those_that_weigh_most() -> None:
    text = " ".join(f"{number:x}q" for number in range(MAX_QUERY_TERMS + 500))
    query = weigh_words(Query(title="lexicon", abstract=text), WordWeights(), NO_STATISTICS)
    assert len(query.terms) == MAX_QUERY_TERMS
    assert term_id("lexicon") in query.terms.ids


def test_words_too_far_to_weigh_anything_are_left_out() -> None:
    far = " ".join(f"word{number}q" for number in range(2000))
    weights = WordWeights(terms=TermWeights(reach=5.0, floor=0.0))
    query = weigh_words(Query(f"{far} TARGETCIT"), weights, NO_STATISTICS)
    assert 0 < len(query.terms) < 2000
    assert (query.terms.values > 0).all()


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_idf_is_that_of_bm25(papers: int, others: int) -> None:
    frequency = min(papers, others)
    statistics = Statistics("v", Frequencies(papers, 1.0, Counts.of({7: frequency}) if frequency else NO_COUNTS))
    expected = np.log(float(1 + (Fraction(papers) - frequency + Fraction(1, 2)) / (frequency + Fraction(1, 2))))
    assert statistics.idf(np.array([7], np.uint32)) == pytest.approx([expected])
