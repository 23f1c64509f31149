"""The recommender's orchestration over ports in memory: its calls, their time limits, and degraded answers."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from citewell.recommender.answers import Reason
from citewell.recommender.ports import (
    Embedding,
    EvidenceCall,
    Field,
    ProfileScore,
    Reranked,
    Reranking,
    ScoreCall,
    SearchCall,
)
from citewell.recommender.queries import Options
from citewell.recommender.recommend import Recommender
from citewell.runtime.errors import (
    CitewellError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidField,
    NotFound,
    Overloaded,
    Unavailable,
)
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.queries import AsOf, Query, Strategy
from tests.unit.recommender_world import LIMITS, QUERY, World, ids, reasons

TOLD = {each: Reranked(score, 0.9) for each, score in (("p7", 0.2), ("p6", 0.8), ("p5", 0.1), ("p4", 0.9))}
"""What the reranker says of the second phase's best."""


async def test_the_reranker_orders_what_it_read_and_the_rest_keeps_the_retrieval_order() -> None:
    answer = await World().ask(top_k=6)
    assert ids(answer) == ["p3", "p2", "p1", "p0", "p4", "p5"]
    best, last = answer.items[0], answer.items[-1]
    assert [(one.stage, one.rank) for one in best.stages] == [("retrieval", 4), ("rerank", 1)]
    assert best.score == pytest.approx(0.04)
    assert [one.stage for one in last.stages] == ["retrieval"]
    assert last.prior == pytest.approx(0.95**6)
    assert [one.evidence.text for one in best.evidence] == ["it has been shown on p3"]
    assert not answer.degraded
    assert (answer.snapshot.encoder_hash, answer.snapshot.reranker_hash) == ("model", "davinci")
    assert {stage for stage, _ in answer.timings} == {*("embed", "search", "rerank", "evidence", "parts", "total")}


async def test_the_second_phase_orders_what_the_reranker_then_reads() -> None:
    world = World(second_phase=True)
    plain = await world.ask(top_k=3, rerank=False)
    assert ids(plain) == ["p7", "p6", "p5"]
    best = plain.items[0]
    assert [(one.stage, one.rank) for one in best.stages] == [("retrieval", 8), ("second_phase", 1)]
    assert (best.score, best.prior) == (8.0, pytest.approx(0.95))
    assert sum(value for _, value in best.contributions) == best.score
    assert plain.snapshot.second_phase_hash == "second"
    await world.ask(top_k=3)
    ((call, _),) = world.asked("rerank")
    assert [(one.paper.id, one.rank) for one in call.candidates][:2] == [("p7", 1), ("p6", 2)]  # type: ignore[attr-defined]


async def test_what_is_reranked_is_ordered_by_its_log_odds_and_the_second_phase_together() -> None:
    world = World(second_phase=True)  # p7 … p4 with 8 … 5 by the second phase
    world.reranking = Reranking(TOLD, "davinci")
    answer = await world.ask(top_k=6)
    assert ids(answer) == ["p6", "p4", "p7", "p5", "p3", "p2"]
    best = answer.items[0]
    assert [(one.stage, one.rank) for one in best.stages] == [
        *(("retrieval", 7), ("second_phase", 2)),
        *(("rerank", 2), ("joined", 1)),
    ]
    assert best.score == pytest.approx(math.log(0.8 / 0.2) + 0.75 * 7.0)
    assert [len(item.stages) for item in answer.items] == [4, 4, 4, 4, 2, 2]
    assert answer.snapshot.second_phase_weight == 0.75


async def test_without_weight_or_second_phase_the_reranker_alone_orders_what_it_read() -> None:
    for world, limits in ((World(second_phase=True), replace(LIMITS, second_phase_weight=0.0)), (World(), LIMITS)):
        world.reranking = Reranking(TOLD, "davinci")
        recommender = Recommender(world, world, world, world, world, limits, world.clock)
        options = Options(top_k=6, candidates=8, rerank_depth=8, strategy=Strategy.HYBRID)
        answer = await recommender.recommend(QUERY, options, lambda: 10.0)
        assert ids(answer)[:4] == ["p4", "p6", "p7", "p5"]
        assert answer.items[0].score == 0.9
        assert {stage.stage for item in answer.items for stage in item.stages} & {"joined"} == set()
        assert answer.snapshot.second_phase_weight == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": Strategy.PROFILE},
        {"strategy": Strategy.GLOBAL},
        {"as_of": AsOf.KNOWLEDGE, "filter": SearchFilter(PartialDate(2020))},
    ],
)
async def test_only_hybrid_is_ranked_again_and_never_as_of_a_date(options: dict[str, Any]) -> None:
    """The index knows only what is known today."""
    world = World(second_phase=True)
    answer = await world.ask(rerank=False, **options)
    assert all(call.second is None for call, _ in world.asked("search"))  # type: ignore[attr-defined]
    assert answer.snapshot.second_phase_hash == ""


async def test_equal_rerank_scores_are_ordered_by_paper_id() -> None:
    world = World(papers=("b", "c", "a"))
    world.reranking = Reranking({each: Reranked(0.5, 0.9) for each in "abc"})
    assert ids(await world.ask()) == ["a", "b", "c"]


async def test_the_draft_itself_is_neither_item_nor_evidence() -> None:
    world = World()
    answer = await world.ask(replace(QUERY, paper_id="p0"), rerank=False)
    assert ids(answer) == ["p1", "p2", "p3"]
    ((call, _),) = world.asked("evidence")
    assert isinstance(call, EvidenceCall)
    assert call.excluded_citing_ids == ("p0",)


@pytest.mark.parametrize(
    ("stage", "error", "reason"),
    [
        ("rerank", Unavailable("gone"), Reason.RERANKER_UNAVAILABLE),
        ("rerank", Internal("broken"), Reason.RERANKER_UNAVAILABLE),
        ("rerank", Overloaded("full"), Reason.RERANKER_OVERLOADED),
        ("evidence", Unavailable("gone"), Reason.EVIDENCE_UNAVAILABLE),
        ("diversity", Unavailable("gone"), Reason.DIVERSITY_UNAVAILABLE),
        ("score", Unavailable("gone"), Reason.PARTS_UNAVAILABLE),
    ],
)
async def test_losing_what_an_answer_can_do_without_degrades_it(
    stage: str, error: CitewellError, reason: Reason
) -> None:
    answer = await World(failing={stage: error}).ask(diversity=0.5)
    assert reasons(answer) == [reason]
    assert len(answer.items) == 3


@pytest.mark.parametrize("stage", ["embed", "search"])
async def test_losing_what_an_answer_needs_fails_it_with_that_error(stage: str) -> None:
    with pytest.raises(Unavailable, match="gone"):
        await World(failing={stage: Unavailable("gone")}).ask()


async def test_later_stages_see_a_smaller_budget_and_hopeless_ones_are_not_started() -> None:
    world = World(takes={"embed": 0.03, "search": 0.05})
    answer = await world.ask(seconds=0.1)
    budgets = {stage: seconds for stage, _, seconds in world.calls}
    assert budgets["embed"] == pytest.approx(0.1)
    assert budgets["search"] == pytest.approx(0.07)
    assert "rerank" not in budgets  # the 20 ms left are reserved for the answer
    assert set(reasons(answer)) == {Reason.RERANK_TIMEOUT, Reason.EVIDENCE_UNAVAILABLE, Reason.PARTS_UNAVAILABLE}

    world = World(takes={"embed": 0.0995})
    with pytest.raises(DeadlineExceeded, match="too little to start search"):
        await world.ask(seconds=0.1)
    assert not world.asked("search")


async def test_a_reranker_that_hangs_costs_its_own_limit_only_and_then_nothing() -> None:
    world = World(takes={"rerank": 60.0})
    recommender = world.recommender()
    options = Options(top_k=3, candidates=6)
    spent = []
    for _ in range(5):
        before = world.clock.now
        answer = await recommender.recommend(QUERY, options, lambda: 30.0)
        spent.append(world.clock.now - before)
        assert reasons(answer)[0] in (Reason.RERANK_TIMEOUT, Reason.RERANKER_UNAVAILABLE)
    assert spent == [10.0, 10.0, 10.0, 0.0, 0.0]
    world.clock.now += 2.1
    world.takes.clear()
    assert not (await recommender.recommend(QUERY, options, lambda: 30.0)).degraded
    assert not (await recommender.recommend(QUERY, options, lambda: 30.0)).degraded


async def test_a_reranker_without_a_model_or_without_time_is_told() -> None:
    world = World(reranking=Reranking({}, partial_reason="NO_MODEL"))
    answer = await world.ask()
    assert (ids(answer), reasons(answer)) == (["p0", "p1", "p2"], [Reason.RERANKER_NO_MODEL])
    scores = {"p0": Reranked(0.1, 0.95), "p1": Reranked(None, 0.9), "p2": Reranked(0.2, 0.8)}
    world = World(reranking=Reranking(scores, partial_reason="DEADLINE"))
    answer = await world.ask(allow_partial=True)
    assert (ids(answer), reasons(answer)) == (["p2", "p0", "p1"], [Reason.RERANK_PARTIAL])
    assert "2 of 4" in answer.degraded[0].message


async def test_a_cut_context_is_told() -> None:
    assert reasons(await World(cut=True).ask()) == [Reason.CONTEXT_CUT]


@pytest.mark.parametrize(("strategy", "vector"), [(Strategy.HYBRID, (0.0, 1.0)), (Strategy.PROFILE, (1.0, 0.0))])
async def test_hybrid_alone_uses_the_mapped_vector(strategy: Strategy, vector: tuple[float, float]) -> None:
    world = World(mapped=(0.0, 1.0))
    await world.ask(strategy=strategy)
    ((search, _),) = world.asked("search")
    assert isinstance(search, SearchCall)
    assert search.vector == vector
    scored = [call for call, _ in world.asked("score") if isinstance(call, ScoreCall)]
    assert {call.vector for call in scored} == {vector}


async def test_as_of_knowledge_scores_the_union_of_both_searches_again() -> None:
    world = World(papers=tuple(f"p{number}" for number in range(40)))
    world.scores = {
        each: ProfileScore(int(each[1:]) / 100, 2, hybrid_score=1 - int(each[1:]) / 100) for each in world.papers
    }
    before = SearchFilter(published_before=PartialDate(2020, 6))
    for strategy, first, best in ((Strategy.PROFILE, Field.PROFILE, "p39"), (Strategy.HYBRID, Field.HYBRID, "p0")):
        world.calls.clear()
        answer = await world.ask(candidates=6, filter=before, as_of=AsOf.KNOWLEDGE, rerank=False, strategy=strategy)
        searches = [call for call, _ in world.asked("search") if isinstance(call, SearchCall)]
        assert [(call.limit, call.field) for call in searches] == [(18, first), (18, Field.CONTENT)]
        # Each is found by one search or the other, and ranked by the date's scores.
        assert ids(answer)[0] == best
        assert answer.items[0].paper.in_degree == 2
        assert "before 2020-06" in answer.as_of_note
        ((asked, _),) = world.asked("score")
        assert isinstance(asked, ScoreCall)
        assert asked.as_of == PartialDate(2020, 6)
        assert len(asked.paper_ids) == 36
        assert (asked.lexical is None) == (strategy is Strategy.PROFILE)
        (((_, as_of), _),) = world.asked("embed")  # type: ignore[misc]
        assert as_of == PartialDate(2020, 6)


async def test_what_cannot_become_an_item_is_not_fetched() -> None:
    fetched = []
    for options in ({"rerank": False}, {}, {"rerank": False, "diversity": 0.5}, {"candidates": 2}):
        world = World()
        await world.ask(**{"candidates": 300, **options})
        ((call, _),) = world.asked("search")
        assert isinstance(call, SearchCall)
        fetched.append(call.limit)
    assert fetched == [3, 4, 15, 2]


async def test_a_filtered_answer_says_that_its_ranking_may_know_more() -> None:
    answer = await World().ask(filter=SearchFilter(published_before=PartialDate(2020)))
    assert "may rest on citations made later" in answer.as_of_note


async def test_diversity_prefers_what_was_not_said_yet() -> None:
    world = World(papers=("a", "b", "c"), content={"a": (1.0, 0.0), "b": (1.0, 0.01), "c": (0.0, 1.0)})
    assert ids(await world.ask(top_k=2, rerank=False, diversity=0.5)) == ["a", "c"]
    assert ids(await world.ask(top_k=2, rerank=False, diversity=0.0)) == ["a", "b"]


async def test_a_watermark_is_waited_for_within_the_deadline() -> None:
    world = World()
    await world.ask(min_watermark=("token",))
    ((token, seconds),) = world.asked("watermark")
    assert token == "token"
    assert seconds < 10
    with pytest.raises(FailedPrecondition, match="not searchable in time") as late:
        await World(takes={"watermark": 60}).ask(min_watermark=("token",))
    assert late.value.reason == "WATERMARK_NOT_REACHED"
    options = Options(min_watermark=("token",))
    with pytest.raises(FailedPrecondition, match="no ingestion service"):
        await World().recommender(watermarks=False).recommend(QUERY, options, lambda: 10.0)


async def test_explain_finds_a_paper_below_top_k_and_beyond_the_candidates() -> None:
    world = World(scores={"p5": ProfileScore(0.95, 1, 0.5, 0.3, 0.2), "far": ProfileScore(0.1, 0, hybrid_score=0.1)})
    options = Options(top_k=1, candidates=6, rerank_depth=4)
    explained = await world.recommender().explain(QUERY, "p5", options, lambda: 10.0)
    assert [(one.stage, one.rank) for one in explained.item.stages] == [("retrieval", 6)]
    assert (explained.content_share, explained.context_share, explained.citing_share) == (0.5, 0.3, 0.2)
    assert explained.item.evidence[0].evidence.text == "it has been shown on p5"
    far = await world.recommender().explain(QUERY, "far", options, lambda: 10.0)
    assert (far.item.rank, far.item.score) == (0, 0.1)
    with pytest.raises(NotFound, match="'nobody'"):
        await world.recommender().explain(QUERY, "nobody", options, lambda: 10.0)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (Options(top_k=0), "options.top_k", "0"),
        (Options(top_k=101), "options.top_k", "101"),
        (Options(candidates=-1), "options.candidates", "-1"),
        (Options(candidates=1001), "options.candidates", "1001"),
        (Options(rerank_depth=1001), "options.rerank_depth", "1001"),
        (Options(evidence_per_item=21), "options.evidence_per_item", "21"),
        (Options(diversity=float("nan")), "options.diversity", "nan"),
        (Options(diversity=1.5), "options.diversity", "1.5"),
        (Options(min_confidence=-0.1), "options.min_confidence", "-0.1"),
        (Options(min_confidence=float("nan")), "options.min_confidence", "nan"),
        (Options(as_of=AsOf.KNOWLEDGE), "options.as_of", "AS_OF_KNOWLEDGE"),
        (Options(min_watermark=("t",) * 101), "options.min_watermark", "101 tokens"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(options: Options, field: str, value: str) -> None:
    with pytest.raises(InvalidField) as wrong:
        options.validate()
    assert (wrong.value.field, wrong.value.value) == (field, value)


async def test_a_cancelled_query_cancels_its_stages() -> None:
    cancelled = asyncio.Event()

    class Slow(World):
        async def embed(self, query: Query, as_of: PartialDate, seconds: float) -> Embedding:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError("never ends by itself")

    asking = asyncio.ensure_future(Slow().ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert cancelled.is_set()


async def test_explain_shows_no_paper_of_on_or_after_published_before() -> None:
    world = World()
    for boundary, admitted in (("2011", True), ("2010", False)):
        options = Options(filter=SearchFilter(published_before=PartialDate.parse(boundary)))
        explained = world.recommender().explain(QUERY, "p5", options, lambda: 10.0)
        if admitted:
            assert (await explained).item.paper.id == "p5"
        else:
            with pytest.raises(NotFound, match="not published before 2010"):
                await explained
