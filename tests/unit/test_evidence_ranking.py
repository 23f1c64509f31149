"""EVIDENCE: how spans are ranked, and papers by their spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from citewell.recommender.evidence_ranking import is_long, query_text, rank_papers, rank_spans
from citewell.recommender.ports import Evidence, FoundSpan, Spans
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import Paper
from citewell.scholarly.queries import Query

SHORT = "parsing trees"
LONG = "one two three four five six seven eight nine ten eleven twelve parsing trees"


def span(text: str, okapi: int, plus: int, cosine: float = 0.0, **supports: int) -> FoundSpan:
    return FoundSpan(
        text, okapi, plus, cosine, {each: Evidence("citer", text, support=n) for each, n in supports.items()}
    )


def test_a_short_query_goes_by_both_lexical_ranks() -> None:
    found = Spans((span("a", 3, 1), span("b", 1, 2), span("c", 2, 4, 0.9)), 5.0)
    assert [each.text for each in rank_spans(found, SHORT)] == ["b", "a", "c"]


def test_a_long_query_goes_by_bm25_plus_and_the_cosine() -> None:
    found = Spans((span("a", 1, 2, 0.1), span("b", 3, 3, 0.8), span("c", 2, 4, 0.9)), 5.0)
    assert [each.text for each in rank_spans(found, LONG)] == ["a", "b", "c"]  # 2 + 3, 3 + 2, 4 + 1: ties by text
    nearer = Spans((span("a", 1, 2, 0.1), span("b", 3, 3, 0.8), span("c", 2, 3, 0.9)), 5.0)
    assert rank_spans(nearer, LONG)[0].text == "c"


def test_a_query_is_long_from_two_and_a_half_spans_on() -> None:
    assert is_long("one two three four five", 2.0)
    assert not is_long("one two three four", 2.0)
    assert not is_long(LONG, 0.0)  # no span stored yet


def test_a_span_that_one_ranking_left_out_stands_behind_what_it_ranked() -> None:
    found = Spans((span("left out", 0, 1), span("ranked", 3, 2), span("first", 1, 0)), 5.0)
    # Behind Okapi's 3 comes 4, behind BM25+'s 2 comes 3.
    assert [each.text for each in rank_spans(found, SHORT)] == ["first", "left out", "ranked"]


def test_spans_that_only_the_cosine_found_are_no_candidates() -> None:
    assert rank_spans(Spans((span("near", 0, 0, 1.0),), 5.0), LONG) == []


def test_papers_are_ordered_by_best_span_then_support_then_year_then_id() -> None:
    ranked = [span("one", 1, 1, old=1, famous=4), span("two", 2, 2, famous=1, newest=2, same=2, older=2, unknown=9)]
    years = {"old": 2001, "famous": 1990, "newest": 2020, "same": 2020, "older": 2010}
    papers = {each: Paper(each, published=PartialDate(year)) for each, year in years.items()}
    best = rank_papers(ranked, papers)
    assert [each.paper.id for each in best] == ["famous", "old", "newest", "same", "older"]
    assert [(each.best_rank, each.support) for each in best[:3]] == [(1, 5), (1, 1), (2, 2)]
    assert best[0].evidence.text == "one"
    assert [each.evidence.score for each in best[1:3]] == [1.0, 0.5]


def test_the_query_is_its_span_else_its_title_else_its_abstract() -> None:
    assert query_text(Query("Old. We use BERT OTHERCIT and trees TARGETCIT.", "t", "a")) == "trees"
    assert query_text(Query("", "a title", "an abstract")) == "a title"
    assert query_text(Query("", " ", "an abstract")) == "an abstract"


RANKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(-1, 1), st.sets(st.sampled_from("abcdef"))), max_size=12
)


@given(RANKS, st.permutations(range(12)), st.sampled_from([SHORT, LONG]))
def test_the_order_never_depends_on_the_order_of_what_was_found(
    ranks: list[tuple[int, int, float, set[str]]], order: list[int], text: str
) -> None:
    spans = [
        span(f"span {number}", okapi, plus, cosine, **dict.fromkeys(papers, 1))
        for number, (okapi, plus, cosine, papers) in enumerate(ranks)
    ]
    shuffled = [spans[at] for at in order if at < len(spans)]
    papers = {each: Paper(each) for each in "abcde"}
    one = rank_papers(rank_spans(Spans(tuple(spans), 3.0), text), papers)
    other = rank_papers(rank_spans(Spans(tuple(shuffled), 3.0), text), papers)
    assert one == other
    assert [each.best_rank for each in one] == sorted(each.best_rank for each in one)
    assert "f" not in {each.paper.id for each in one}
