"""Searches, pages and evidence: Index answers the same with every store."""

import base64
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citewell.index.index import Index
from citewell.index.points import CONTENT, HYBRID, LEXICAL, PaperPoint
from citewell.index.queries import EvidenceSearch, Search
from citewell.index.store import Kind
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms, contributions, lexical_score
from citewell.scholarly.papers import Paper, SearchFilter
from tests.store_world import (
    DIMENSION,
    LOCAL_MODE,
    VIEW,
    Adapter,
    bag,
    cosine,
    filters,
    ids,
    paper,
    span,
    vector,
    words_query,
    write,
)

pytestmark = LOCAL_MODE
DESCENDING = Terms(np.array([5, 3], np.uint32), np.ones(2, np.float32))


words_fields = st.sampled_from([HYBRID, LEXICAL])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(search_filter=filters, seed=st.integers(0, 50), limit=st.integers(1, 140))
async def test_a_search_finds_the_best_of_what_the_filter_admits(
    stocked: Index, search_filter: SearchFilter, seed: int, limit: int
) -> None:
    corpus = {point.paper.id: point for point in map(paper, range(120))}
    query = vector(seed)
    found = (await stocked.search(Search(limit, query, filter=search_filter))).papers
    admitted = {key: cosine(query, point.profile) for key, point in corpus.items() if search_filter.admits(point.paper)}
    assert len(found) == min(limit, len(admitted))
    order = [(-hit.score, hit.paper.id) for hit in found]
    assert order == sorted(order)
    for hit in found:
        assert hit.paper == corpus[hit.paper.id].paper
        assert hit.score == pytest.approx(admitted.pop(hit.paper.id), abs=1e-5)
    assert all(score <= found[-1].score + 1e-5 for score in admitted.values())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(search_filter=filters, size=st.integers(1, 50))
async def test_pages_hold_everything_once_in_one_order(stocked: Index, search_filter: SearchFilter, size: int) -> None:
    async def walk() -> list[Paper]:
        papers, token = await stocked.list_papers(size, "", search_filter)
        while token:
            assert len(papers) % size == 0
            more, token = await stocked.list_papers(size, token, search_filter)
            papers += more
        return papers

    papers = await walk()
    expected = [point.paper for point in map(paper, range(120)) if search_filter.admits(point.paper)]
    assert sorted(papers, key=lambda listed: listed.id) == expected
    assert await walk() == papers


async def test_a_page_token_belongs_to_its_question(stocked: Index) -> None:
    _, token = await stocked.list_papers(10, "", SearchFilter(year_from=1990))
    nested = base64.urlsafe_b64encode(b"[" * 50_000).decode()
    for wrong, asked in ((token, SearchFilter()), *((each, SearchFilter()) for each in ("broken", token[:-6], nested))):
        with pytest.raises(InvalidField, match="page_token"):
            await stocked.list_papers(10, wrong, asked)


async def test_ties_go_by_id_also_at_the_limit(index: Index) -> None:
    same = vector(1)
    await write(index, *(paper(number, profile=same) for number in reversed(range(100))))
    for limit in (1, 30, 99, 100):
        assert await ids(index, same, limit) == [f"paper-{number:03}" for number in range(limit)]


async def test_content_is_searched_by_cosine_too(index: Index) -> None:
    await write(index, *(paper(number, content=vector(number) * (number + 1)) for number in range(30)))
    query = vector(77)
    expected = sorted(range(30), key=lambda number: -cosine(query, vector(number)))
    assert await ids(index, query, searched=CONTENT) == [f"paper-{number:03}" for number in expected]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    search_filter=filters,
    seed=st.integers(0, 50),
    limit=st.integers(1, 140),
    searched=st.sampled_from([HYBRID, LEXICAL]),
)
async def test_words_and_profile_are_added_over_all_that_the_filter_admits(
    stocked: Index, search_filter: SearchFilter, seed: int, limit: int, searched: str
) -> None:
    query, words = vector(seed), words_query(seed)
    expected = {}
    for point in map(paper, range(120)):
        lexical = lexical_score(words, point.terms, point.length)
        score = cosine(query, point.profile) + 3.0 * lexical if searched == HYBRID else lexical
        if search_filter.admits(point.paper) and (lexical or searched == HYBRID):
            expected[point.paper.id] = score
    search = Search(limit, query, words, 5, searched, search_filter)
    found = (await stocked.search(search)).papers
    assert len(found) == min(limit, len(expected))
    assert [(-hit.score, hit.paper.id) for hit in found] == sorted((-hit.score, hit.paper.id) for hit in found)
    for hit in found:
        point = paper(int(hit.paper.id[-3:]))
        assert hit.score == pytest.approx(expected.pop(hit.paper.id), abs=1e-5)
        assert hit.lexical_score == pytest.approx(lexical_score(words, point.terms, point.length), abs=1e-6)
        assert hit.profile_score == pytest.approx(cosine(query, point.profile) if searched == HYBRID else 0, abs=1e-6)
        heaviest = contributions(words, point.terms, point.length).largest(5)
        assert np.array_equal(hit.matched.ids, heaviest.ids)
        assert np.allclose(hit.matched.values, heaviest.values)
    assert all(score <= found[-1].score + 1e-5 for score in expected.values())


async def test_the_best_by_words_and_profile_are_found_among_thousands(index: Index) -> None:
    """Papers of a subject share a direction and words; candidates are named by each part alone, and both count."""
    draw = np.random.default_rng(3)
    subjects = draw.standard_normal((12, DIMENSION)).astype(np.float32)
    vocabulary = draw.integers(1, 5000, (12, 60))

    def about(number: int) -> PaperPoint:
        subject = number % 12
        common = draw.zipf(1.2, 40) % 4000
        words = np.unique(np.concatenate([draw.choice(vocabulary[subject], 20), common]))
        terms = Terms.of({int(word): float(draw.integers(1, 7)) / 2 for word in words})
        direction = subjects[subject] + 0.7 * draw.standard_normal(DIMENSION).astype(np.float32)
        return paper(number, profile=direction, terms=terms, length=float(terms.values.sum()))

    points = [about(number) for number in range(3000)]
    for start in range(0, len(points), 500):
        await write(index, *points[start : start + 500])
    recalls = []
    for source in points[:8]:
        words = LexicalQuery(Terms(source.terms.ids, np.full(len(source.terms), 0.02, np.float32)), 3.0, 1.2, 0.4, 90.0)
        scores = {
            point.paper.id: cosine(source.profile, point.profile) + 3 * lexical_score(words, point.terms, point.length)
            for point in points
        }
        best = set(sorted(scores, key=lambda key: -scores[key])[:300])
        found = (await index.search(Search(300, source.profile, words, searched=HYBRID))).papers
        recalls.append(len(best & {hit.paper.id for hit in found}) / 300)
    assert np.mean(recalls) >= 0.98


async def test_a_hidden_or_changed_paper_has_other_words(stocked: Index) -> None:
    words = words_query(3)

    async def by_words() -> dict[str, float]:
        found = await stocked.search(Search(200, lexical=words, searched=LEXICAL))
        return {hit.paper.id: hit.score for hit in found.papers}

    before = await by_words()
    assert {"paper-003", "paper-005"} <= before.keys()
    empty = Terms.of({})
    await write(stocked, paper(3, version=2, hidden=True), paper(5, version=2, terms=empty, length=0.0))
    await write(stocked, paper(7, version=2, terms=bag(3), length=3.0))
    after = await by_words()
    assert not {"paper-003", "paper-005"} & after.keys()
    assert after["paper-007"] > before["paper-007"]


async def test_hidden_papers_and_spans_are_in_no_answer(stocked: Index, adapter: Adapter) -> None:
    await write(stocked, paper(3, version=2, hidden=True), span(20, 5, version=2, hidden=True))
    assert "paper-003" not in await ids(stocked, paper(3).profile)
    assert "paper-003" not in await ids(stocked, paper(3).content, searched=CONTENT)
    shown, missing = await stocked.papers(["paper-005", "paper-003", "unheard of", "paper-001"])
    assert [listed.id for listed in shown] == ["paper-005", "paper-001"]
    assert missing == ["paper-003", "unheard of"]
    listed, _ = await stocked.list_papers(1000, "", SearchFilter())
    assert len(listed) == 119
    for query in (vector(2020), np.empty(0, np.float32)):
        found = await stocked.search_evidence(EvidenceSearch(["paper-005"], 20, query))
        assert len(found["paper-005"]) == 19
    stats = await stocked.stats()
    assert (stats.papers, stats.hidden_papers, stats.spans) == (119, 1, 199)
    assert await adapter.store.points(VIEW, Kind.PAPERS).count() == 120
    [[hidden], [gone]] = await stocked.read_points("", ["paper-003"], ["20>5"])
    assert hidden.hidden
    assert gone.hidden
    await write(stocked, paper(3, version=3))
    assert "paper-003" in await ids(stocked, paper(3).profile)


async def test_evidence_is_the_nearest_words_about_each_paper(stocked: Index) -> None:
    query = vector(9)
    found = await stocked.search_evidence(EvidenceSearch(["paper-007", "paper-001", "nobody's"], 5, query))
    assert list(found) == ["paper-007", "paper-001", "nobody's"]
    nearest = sorted(range(20, 40), key=lambda citing: -cosine(query, vector(2000 + citing)))[:5]
    for cited in ("paper-007", "paper-001"):
        assert [piece.span.citing_id for piece in found[cited]] == [f"paper-{citing:03}" for citing in nearest]
        assert all(piece.span.cited_id == cited for piece in found[cited])
        assert found[cited][0].score == pytest.approx(cosine(query, vector(2000 + nearest[0])), abs=1e-5)
    assert found["nobody's"] == []


async def test_evidence_keeps_what_is_dated_later_and_the_draft_itself_out(stocked: Index) -> None:
    search = EvidenceSearch(["paper-001"], 20, vector(9), PartialDate(2016), ["paper-022"])
    found = await stocked.search_evidence(search)
    assert {piece.span.citing_id for piece in found["paper-001"]} == {
        f"paper-{citing:03}" for citing in (20, 21, 23, 24, 25)
    }


async def test_without_a_query_the_newest_words_come_first(stocked: Index) -> None:
    found = await stocked.search_evidence(EvidenceSearch(["paper-001", "paper-002"], 3))
    for pieces in found.values():
        assert [piece.span.citing_id for piece in pieces] == ["paper-039", "paper-038", "paper-037"]


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("vector", {"vector": np.empty(0, np.float32)}),
        ("vector", {"vector": np.zeros(DIMENSION, np.float32)}),
        ("vector", {"vector": np.ones(DIMENSION - 1, np.float32)}),
        ("vector", {"vector": np.full(DIMENSION, np.nan, np.float32)}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 3001}),
        ("lexical", {"searched": LEXICAL}),
        ("lexical", {"searched": HYBRID}),
        ("vector", {"searched": HYBRID, "lexical": words_query(1), "vector": np.empty(0, np.float32)}),
        ("lexical.weight", {"searched": HYBRID, "lexical": words_query(1, weight=np.nan)}),
        ("lexical.b", {"searched": HYBRID, "lexical": replace(words_query(1), b=1.5)}),
        ("lexical.terms.ids[1]", {"searched": LEXICAL, "lexical": replace(words_query(1), terms=DESCENDING)}),
        ("matched_terms", {"searched": HYBRID, "lexical": words_query(1), "matched_terms": 51}),
    ],
)
async def test_a_bad_search_names_its_field(stocked: Index, field: str, asked: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as refused:
        await stocked.search(replace(Search(10, vector(0)), **asked))  # type: ignore[arg-type]
    assert refused.value.field == field


async def test_a_query_of_another_encoder_is_refused(stocked: Index) -> None:
    with pytest.raises(FailedPrecondition, match=r"'encoder-a'.*'encoder-b'"):
        await ids(stocked, vector(0), model_hash="encoder-b")
    assert await ids(stocked, vector(0), model_hash="encoder-a")
