"""Each strategy over ports in memory: its calls, the reranker's input, and the scores of items."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.recommender.answers import Answer, Reason
from citewell.recommender.confidence import Calibration, Table
from citewell.recommender.ports import (
    Evidence,
    EvidenceCall,
    Field,
    FoundSpan,
    ProfileScore,
    RerankCall,
    Reranked,
    Reranking,
    SearchCall,
    SpanCall,
)
from citewell.recommender.queries import Options
from citewell.runtime.errors import InvalidField, Overloaded, Unavailable
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.limits import MAX_QUERY_TERMS
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.queries import AsOf, Query, Strategy
from citewell.scholarly.spans import Span
from citewell.scholarly.words import term_id
from tests.unit.recommender_world import QUERY, World, ids, reasons

BEFORE = PartialDate(2020, 6)


def searches(world: World) -> list[SearchCall]:
    return [call for call, _ in world.asked("search") if isinstance(call, SearchCall)]


def evidence_calls(world: World) -> list[EvidenceCall]:
    return [call for call, _ in world.asked("evidence") if isinstance(call, EvidenceCall)]


def rerank_call(world: World) -> RerankCall:
    ((call, _),) = world.asked("rerank")
    assert isinstance(call, RerankCall)
    return call


async def test_hybrid_searches_by_words_too_and_profile_never_does() -> None:
    world = World()
    await world.ask(strategy=Strategy.HYBRID)
    (call,) = searches(world)
    assert call.field is Field.HYBRID
    assert call.lexical is not None
    assert call.lexical.weight == 3.0
    world = World()
    await world.ask(strategy=Strategy.PROFILE)
    (call,) = searches(world)
    assert (call.field, call.lexical) == (Field.PROFILE, None)


async def test_an_answer_says_which_statistics_it_was_made_with() -> None:
    assert (await World().ask()).snapshot.statistics == "stats-1"


async def test_items_say_what_their_score_is_made_of_and_which_words_matched() -> None:
    world = World(scores={f"p{number}": ProfileScore(0.4, 9, 0.5, 0.3, 0.2) for number in range(8)})
    answer = await world.ask(Query("as TARGETCIT has Shown it", "a draft"), rerank=False)
    first = answer.items[0]  # score 1 = 0.4 of the vector + 3 · 0.2 of the words
    assert first.parts is not None
    parts = (first.parts.content, first.parts.contexts, first.parts.citing, first.parts.words)
    assert parts == pytest.approx((0.2, 0.12, 0.08, 0.6))
    assert [(one.word, one.share) for one in first.words] == [("Shown", pytest.approx(0.3))]
    ((shown,),) = (first.evidence,)
    assert [match.of(shown.evidence.text) for match in shown.matches] == ["shown"]


async def test_parts_that_cannot_be_had_degrade_the_answer_alone() -> None:
    answer = await World(failing={"score": Unavailable("gone")}).ask()
    assert reasons(answer) == [Reason.PARTS_UNAVAILABLE]
    assert [item.parts for item in answer.items] == [None] * 3


async def test_a_reranker_that_reads_citing_contexts_gets_them_from_the_one_search_that_items_show() -> None:
    world = World(contexts_read=2)
    answer = await world.ask(filter=SearchFilter(published_before=BEFORE), query=replace(QUERY, paper_id="draft"))
    (evidence,) = evidence_calls(world)
    assert evidence.cited_ids == ("p0", "p1", "p2", "p3")
    assert evidence.limit_per_paper == 2
    assert evidence.published_before == BEFORE
    assert evidence.excluded_citing_ids == ("draft",)
    call = rerank_call(world)
    assert call.contexts["p1"] == ("it has been shown on p1", "the second draft on p1")
    assert [candidate.rank for candidate in call.candidates] == [1, 2, 3, 4]
    assert [len(item.evidence) for item in answer.items] == [1, 1, 1]
    assert not answer.degraded


async def test_items_that_the_reranker_does_not_read_have_evidence_of_their_own() -> None:
    world = World(contexts_read=2)
    answer = await world.ask(top_k=6, evidence_per_item=3)
    first, second = evidence_calls(world)
    assert (first.cited_ids, second.cited_ids) == (("p0", "p1", "p2", "p3"), ("p4", "p5"))
    assert all(len(item.evidence) == 3 for item in answer.items)
    assert all(len(said) == 2 for said in rerank_call(world).contexts.values())


async def test_a_reranker_that_reads_no_contexts_does_not_wait_for_evidence() -> None:
    world = World(contexts_read=0)
    await world.ask()
    assert [stage for stage, _, _ in world.calls].index("rerank") < [stage for stage, _, _ in world.calls].index(
        "evidence"
    )
    assert rerank_call(world).contexts == {}


async def test_without_evidence_the_reranker_still_runs_and_the_answer_says_so_once() -> None:
    world = World(failing={"evidence": Unavailable("gone")})
    answer = await world.ask(top_k=6)
    assert ids(answer) == ["p3", "p2", "p1", "p0", "p4", "p5"]
    assert reasons(answer) == [Reason.EVIDENCE_UNAVAILABLE]
    assert rerank_call(world).contexts == {}


async def test_a_slow_evidence_search_leaves_half_of_the_time_to_the_reranker() -> None:
    world = World(takes={"evidence": 5.0})
    answer = await world.ask(seconds=1.0)
    ((_, seconds),) = world.asked("evidence")
    assert seconds == pytest.approx(0.5)
    assert ids(answer)[0] == "p3"
    assert Reason.EVIDENCE_UNAVAILABLE in reasons(answer)


async def test_how_many_contexts_the_model_reads_is_asked_once_and_again_after_another_model_answered() -> None:
    world = World(contexts_read=2)
    recommender, options = world.recommender(), Options(top_k=3, candidates=6)
    for _ in range(3):
        await recommender.recommend(QUERY, options, lambda: 10.0)
    assert len(world.asked("reranker")) == 1
    world.contexts_read = 0
    world.reranking = Reranking({"p0": Reranked(0.5, 0.95)}, "another")
    await recommender.recommend(QUERY, options, lambda: 10.0)
    await recommender.recommend(QUERY, options, lambda: 10.0)  # refreshes in the background
    await recommender.recommend(QUERY, options, lambda: 10.0)
    assert len(world.asked("reranker")) == 2
    assert world.asked("rerank")[-1][0].contexts == {}  # type: ignore[attr-defined]


async def test_a_reranker_that_does_not_say_what_it_reads_gets_no_contexts_and_the_answer_says_so() -> None:
    world = World(failing={"reranker": Overloaded("full")})
    answer = await world.ask()
    assert ids(answer)[0] == "p3"
    assert reasons(answer) == [Reason.EVIDENCE_UNAVAILABLE]
    assert rerank_call(world).contexts == {}


async def test_candidates_bound_what_items_reranking_and_diversity_take_from() -> None:
    world = World()
    answer = await world.ask(top_k=6, candidates=2, rerank_depth=50)
    assert ids(answer) == ["p1", "p0"]
    assert [candidate.paper.id for candidate in rerank_call(world).candidates] == ["p0", "p1"]
    world = World(content={f"p{number}": (1.0, float(number == 7)) for number in range(8)})
    assert "p7" in ids(await world.ask(top_k=2, rerank=False, diversity=0.9, candidates=8))
    assert "p7" not in ids(await world.ask(top_k=2, rerank=False, diversity=0.9, candidates=7))


def said(paper_id: str, support: int, text: str = "trees grow TARGETCIT well") -> dict[str, Evidence]:
    return {paper_id: Evidence(f"citer of {paper_id}", text, PartialDate(2015), span=Span(0, 10), support=support)}


async def test_evidence_ranks_by_spans_and_every_item_carries_its_span() -> None:
    world = World(
        found_spans=(
            FoundSpan("trees grow", 1, 1, 0.0, {**said("p1", 2), **said("p2", 3), **said("gone", 9)}),
            FoundSpan("grow fast", 2, 2, 0.0, said("p3", 1)),
        )
    )
    answer = await world.ask(
        Query("Old. In forests trees Grow TARGETCIT.", "a draft", paper_id="draft"), strategy=Strategy.EVIDENCE
    )
    ((call, _),) = world.asked("search")
    assert isinstance(call, SpanCall)
    assert set(call.terms.ids.tolist()) == {term_id("forest"), term_id("tree"), term_id("grow")}
    assert call.excluded_citing_ids == ("draft",)
    assert "draft" in call.filter.excluded_ids
    assert ids(answer) == ["p2", "p1", "p3"]
    assert not world.asked("rerank")
    assert not world.asked("evidence")
    assert not answer.degraded
    for item in answer.items:
        (shown,) = item.evidence
        assert shown.evidence.span.of(shown.evidence.text) == "trees grow"
        assert [match.of(shown.evidence.text) for match in shown.matches] == ["trees", "grow"]
        assert shown.evidence.support >= 1
    assert [item.evidence[0].evidence.support for item in answer.items] == [3, 2, 1]


async def test_evidence_has_nothing_to_say_about_a_query_without_words() -> None:
    world = World(found_spans=(FoundSpan("trees grow", 1, 1, 0.0, said("p1", 2)),))
    assert not (await world.ask(Query("It is of the TARGETCIT."), strategy=Strategy.EVIDENCE)).items
    assert not world.asked("search")  # which must name a term at least


async def test_evidence_searches_by_no_more_words_than_the_index_takes() -> None:
    world = World()
    abstract = " ".join(f"{number:x}q" for number in range(MAX_QUERY_TERMS + 500))
    await world.ask(Query(abstract=abstract), strategy=Strategy.EVIDENCE)
    ((call, _),) = world.asked("search")
    assert isinstance(call, SpanCall)
    assert len(call.terms) == MAX_QUERY_TERMS


async def test_evidence_shows_more_contexts_behind_the_span_where_more_are_asked_for() -> None:
    world = World(found_spans=(FoundSpan("trees grow", 1, 1, 0.0, said("p1", 2)),))
    answer = await world.ask(strategy=Strategy.EVIDENCE, evidence_per_item=2)
    assert [one.evidence.text for one in answer.items[0].evidence] == [
        "trees grow TARGETCIT well",
        "it has been shown on p1",
    ]
    none = await world.ask(strategy=Strategy.EVIDENCE, evidence_per_item=0)
    assert len(none.items[0].evidence) == 1  # an item of this strategy always has its span


async def test_global_reads_no_context_and_adds_what_the_nearest_papers_cite() -> None:
    world = World(
        papers=("p0", "p1", "p2"),
        others=("far", "unwanted", "unknown"),
        cites={"p2": ("far", "stub", "unwanted"), "p1": ("far", "p1")},
        scores={
            "p0": ProfileScore(0.2, 3, 0.5, 0.3, 0.2, 0.1, 0.5),
            "p1": ProfileScore(0.2, 3, 0.5, 0.3, 0.2, 0.1, 0.5),
            "p2": ProfileScore(0.1, 3, 0.5, 0.3, 0.2, 0.1, 0.4),
            "far": ProfileScore(0.1, 3, 0.5, 0.3, 0.2, 0.1, 0.4),
            "unwanted": ProfileScore(0.9, 3, 0.5, 0.3, 0.2, 0.1, 1.2),
        },
    )
    wanted = SearchFilter(published_before=BEFORE, year_from=2000, excluded_ids=frozenset(["unwanted"]))
    answer = await world.ask(
        Query("as TARGETCIT has shown", "a draft", paper_id="draft"), strategy=Strategy.GLOBAL, filter=wanted, top_k=4
    )
    (((query, _), _),) = world.asked("embed")  # type: ignore[misc]
    assert query.context == ""
    first, nearest = searches(world)
    assert (first.field, first.limit) == (Field.HYBRID, 6)
    assert nearest.field is Field.CONTENT
    assert nearest.filter == SearchFilter(published_before=BEFORE, excluded_ids=frozenset(["draft"]))
    (((asked, _), _),) = world.asked("references")  # type: ignore[misc]
    assert asked == ("p2", "p1", "p0")
    # Two thirds of the nearest cite far, a third p1.
    assert [(item.paper.id, item.score) for item in answer.items] == [
        ("far", pytest.approx(0.4 + 2 / 3)),
        ("p1", pytest.approx(0.5 + 1 / 3)),
        ("p0", pytest.approx(0.5)),
        ("p2", pytest.approx(0.4)),
    ]
    assert not world.asked("rerank")
    assert not answer.degraded
    parts = answer.items[0].parts
    assert parts is not None
    assert parts.content + parts.contexts + parts.citing + parts.words == pytest.approx(0.4 / (0.4 + 2 / 3))


async def test_global_needs_a_title_or_an_abstract() -> None:
    with pytest.raises(InvalidField, match="a title or an abstract") as wrong:
        await World().ask(Query("as TARGETCIT has shown"), strategy=Strategy.GLOBAL)
    assert (wrong.value.field, wrong.value.reason) == ("query.title", "EMPTY_QUERY")


async def test_global_without_references_degrades() -> None:
    world = World(
        failing={"references": Unavailable("gone")},
        scores={each: ProfileScore(0.1, 3, hybrid_score=0.1) for each in ("p0", "p1", "p2")},
    )
    answer = await world.ask(strategy=Strategy.GLOBAL)
    assert ids(answer) == ["p0", "p1", "p2"]
    assert reasons(answer) == [Reason.REFERENCES_UNAVAILABLE]


RERANKED = Table(Strategy.HYBRID, "model", "davinci", ("rerank",), (1.0,), 0.0)
UNRERANKED = Table(Strategy.HYBRID, "model", "", ("retrieval",), (100.0,), -99.0)
CALIBRATION = Calibration((RERANKED, UNRERANKED))


async def answer_with(calibration: Calibration, world: World | None = None, **options: object) -> Answer:
    world = world or World()
    chosen = replace(Options(top_k=6, candidates=6, rerank_depth=4, strategy=Strategy.HYBRID), **options)  # type: ignore[arg-type]
    return await world.recommender(calibration=calibration).recommend(QUERY, chosen, lambda: 10.0)


async def test_confidence_is_told_where_the_answer_was_calibrated_for() -> None:
    answer = await answer_with(CALIBRATION)
    told = {item.paper.id: item.confidence for item in answer.items}
    assert told["p3"] == pytest.approx(0.04)  # the reranker's own probability
    assert told["p5"] is None  # it was not read, and unread papers of reranked answers are not calibrated
    answer = await answer_with(CALIBRATION, rerank=False)
    assert answer.items[0].confidence == pytest.approx(1 / (1 + 2.718281828**-1))
    for other in ({"strategy": Strategy.PROFILE}, {"as_of": AsOf.KNOWLEDGE, "filter": SearchFilter(BEFORE)}):
        answer = await answer_with(CALIBRATION, **other)
        assert all(item.confidence is None for item in answer.items)


async def test_confidence_is_told_for_the_learned_parts_it_was_calibrated_for() -> None:
    def world() -> World:
        return World(mapped=(1.0, 0.0), term_weights="words")

    answer = await answer_with(CALIBRATION, world(), rerank=False)
    assert all(item.confidence is None for item in answer.items)
    calibration = Calibration((replace(UNRERANKED, encoder="model+map+words"),))
    answer = await answer_with(calibration, world(), rerank=False)
    assert answer.items[0].confidence is not None


async def test_items_of_too_little_confidence_are_left_out_and_an_empty_answer_is_an_answer() -> None:
    answer = await answer_with(CALIBRATION, min_confidence=0.025)
    assert [(item.rank, item.paper.id) for item in answer.items] == [(1, "p3"), (2, "p2")]
    answer = await answer_with(CALIBRATION, min_confidence=1.0)
    assert (answer.items, answer.degraded) == ((), ())


async def test_a_least_confidence_that_nothing_is_calibrated_for_is_told() -> None:
    answer = await answer_with(Calibration(), min_confidence=0.5)
    assert len(answer.items) == 6
    assert reasons(answer) == [Reason.NOT_CALIBRATED]


@given(
    strategy=st.sampled_from(Strategy),
    as_of=st.sampled_from(AsOf),
    failing=st.sets(st.sampled_from(["rerank", "evidence", "diversity", "references", "reranker"])),
    diversity=st.sampled_from([0.0, 0.5]),
    top_k=st.integers(1, 9),
    candidates=st.integers(1, 9),
    rerank=st.booleans(),
    depth=st.integers(1, 9),
    evidence=st.integers(0, 3),
)
async def test_whatever_optional_services_fail_an_answer_keeps_to_its_request(
    strategy: Strategy,
    as_of: AsOf,
    failing: set[str],
    diversity: float,
    top_k: int,
    candidates: int,
    rerank: bool,
    depth: int,
    evidence: int,
) -> None:
    """P3, P5 and P7 for every strategy."""
    world = World(
        failing={stage: Unavailable("gone") for stage in failing},
        scores={f"p{number}": ProfileScore(0.4, 1, 0.5, 0.3, 0.2, 0.1, 0.7) for number in range(8)},
        found_spans=(FoundSpan("trees grow", 1, 1, 0.5, {**said("p1", 2), **said("p2", 2)}),),
        cites={"p7": ("far",)},
    )
    options = {
        "strategy": strategy,
        "as_of": as_of,
        "diversity": diversity,
        "top_k": top_k,
        "candidates": candidates,
        "rerank": rerank,
        "rerank_depth": depth,
        "evidence_per_item": evidence,
        "filter": SearchFilter(published_before=BEFORE),
    }
    answer = await world.ask(replace(QUERY, paper_id="draft"), **options)
    assert len(answer.items) <= min(top_k, candidates)
    assert len(set(ids(answer))) == len(answer.items)
    assert [item.rank for item in answer.items] == list(range(1, len(answer.items) + 1))
    for item in answer.items:
        assert len(item.evidence) <= max(evidence, strategy is Strategy.EVIDENCE)
        for shown in item.evidence:
            assert all(0 <= match.offset < match.end <= len(shown.evidence.text) for match in shown.matches)
        if item.parts is not None:
            together = item.parts.content + item.parts.contexts + item.parts.citing + item.parts.words
            assert together <= 1 + 1e-9
            assert together == pytest.approx(1) or strategy is Strategy.GLOBAL
    for call in searches(world):
        assert call.filter.published_before == BEFORE
        assert "draft" in call.filter.excluded_ids
    for asked in evidence_calls(world):
        assert (asked.published_before, asked.excluded_citing_ids) == (BEFORE, ("draft",))
    assert ids(await world.ask(replace(QUERY, paper_id="draft"), **options)) == ids(answer)
