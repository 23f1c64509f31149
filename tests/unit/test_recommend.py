"""The recommender's orchestration over ports in memory: what is asked of whom, within which time, and what is told."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from citewell.recommender.answers import Answer, Reason
from citewell.recommender.ports import (
    Embedding,
    Evidence,
    EvidenceCall,
    Hit,
    Hits,
    ProfileScore,
    RerankCandidate,
    Reranked,
    Reranking,
    SearchCall,
    Vector,
)
from citewell.recommender.queries import Options
from citewell.recommender.recommend import Limits, Recommender
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
from citewell.scholarly.papers import Paper, SearchFilter
from citewell.scholarly.queries import AsOf, Query

QUERY = Query("as TARGETCIT has shown", "a draft")


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """All five ports, with papers whose profile score falls and whose rerank score rises with their number."""

    clock: Clock = field(default_factory=Clock)
    papers: tuple[str, ...] = tuple(f"p{number}" for number in range(8))
    failing: dict[str, CitewellError] = field(default_factory=dict)
    takes: dict[str, float] = field(default_factory=dict)
    calls: list[tuple[str, object, float]] = field(default_factory=list)
    reranking: Reranking | None = None
    as_of_scores: dict[str, ProfileScore] = field(default_factory=dict)
    content: dict[str, tuple[float, float]] = field(default_factory=dict)
    cut: bool = False

    def _called(self, stage: str, request: object, seconds: float) -> None:
        self.calls.append((stage, request, seconds))
        took = self.takes.get(stage, 0.0)
        if took > seconds:
            self.clock.now += seconds
            raise DeadlineExceeded(f"{stage} took too long", stage=stage)
        self.clock.now += took
        if stage in self.failing:
            raise self.failing[stage]

    def asked(self, stage: str) -> list[tuple[object, float]]:
        return [(request, seconds) for name, request, seconds in self.calls if name == stage]

    async def embed(self, query: Query, seconds: float) -> Embedding:
        self._called("embed", query, seconds)
        return Embedding((1.0, 0.0), (0.5, 0.5), "model", "settings", self.cut, (), "view-1")

    async def score(
        self, paper_ids: Sequence[str], vector: Vector, as_of: PartialDate, seconds: float
    ) -> Mapping[str, ProfileScore]:
        self._called("score", (tuple(paper_ids), as_of), seconds)
        return {each: self.as_of_scores[each] for each in paper_ids if each in self.as_of_scores}

    async def search(self, call: SearchCall, seconds: float) -> Hits:
        self._called("search", call, seconds)
        ids = [each for each in self.papers if each not in call.filter.excluded_ids]
        if call.by_content:
            ids.reverse()
        hits = [Hit(Paper(each, f"title of {each}", in_degree=9), 1 - rank / 100) for rank, each in enumerate(ids)]
        return Hits(tuple(hits[: call.limit]), True, "view-1")

    async def get(self, paper_id: str, seconds: float) -> Paper | None:
        self._called("lookup", paper_id, seconds)
        return Paper(paper_id) if paper_id in (*self.papers, "far") else None

    async def contents(self, paper_ids: Sequence[str], view: str, seconds: float) -> Mapping[str, Vector]:
        self._called("diversity", tuple(paper_ids), seconds)
        return {each: self.content[each] for each in paper_ids if each in self.content}

    async def evidence(self, call: EvidenceCall, seconds: float) -> Mapping[str, tuple[Evidence, ...]]:
        self._called("evidence", call, seconds)
        return {each: (Evidence("citer", f"on {each}"),) for each in call.cited_ids}

    async def rerank(
        self, query: Query, candidates: Sequence[RerankCandidate], allow_partial: bool, seconds: float
    ) -> Reranking:
        self._called("rerank", tuple(candidates), seconds)
        if self.reranking is not None:
            return self.reranking
        return Reranking({each.paper.id: Reranked(each.rank / 100, 0.95**each.rank) for each in candidates}, "davinci")

    async def wait(self, token: str, seconds: float) -> None:
        self._called("watermark", token, seconds)

    def recommender(self, *, reranker: bool = True, watermarks: bool = True) -> Recommender:
        return Recommender(
            self, self, self, self if reranker else None, self if watermarks else None, Limits(), self.clock
        )

    async def ask(self, query: Query = QUERY, seconds: float = 10.0, **options: object) -> Answer:
        end = self.clock.now + seconds
        wanted = replace(Options(top_k=3, candidates=6, rerank_depth=4), **options)  # type: ignore[arg-type]
        return await self.recommender().recommend(query, wanted, lambda: end - self.clock.now)


def ids(answer: Answer) -> list[str]:
    return [item.paper.id for item in answer.items]


def reasons(answer: Answer) -> list[str]:
    return [each.reason for each in answer.degraded]


async def test_the_reranker_orders_what_it_read_and_the_rest_keeps_the_retrieval_order() -> None:
    answer = await World().ask(top_k=6)
    assert ids(answer) == ["p3", "p2", "p1", "p0", "p4", "p5"]
    best, last = answer.items[0], answer.items[-1]
    assert [(one.stage, one.rank) for one in best.stages] == [("retrieval", 4), ("rerank", 1)]
    assert best.score == pytest.approx(0.04)
    assert [one.stage for one in last.stages] == ["retrieval"]
    assert last.prior == pytest.approx(0.95**6)
    assert best.evidence[0].text == "on p3"
    assert not answer.degraded
    assert (answer.snapshot.encoder_hash, answer.snapshot.reranker_hash) == ("model", "davinci")
    assert {stage for stage, _ in answer.timings} == {"embed", "search", "rerank", "evidence", "total"}


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
    assert "rerank" not in budgets  # 20 ms were left, and those are for the answer
    assert reasons(answer) == [Reason.RERANK_TIMEOUT, Reason.EVIDENCE_UNAVAILABLE]

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


async def test_as_of_knowledge_scores_the_union_of_both_searches_again() -> None:
    world = World(papers=tuple(f"p{number}" for number in range(40)))
    world.as_of_scores = {each: ProfileScore(int(each[1:]) / 100, 2) for each in world.papers}
    before = SearchFilter(published_before=PartialDate(2020, 6))
    answer = await world.ask(candidates=6, filter=before, as_of=AsOf.KNOWLEDGE, rerank=False)
    assert [isinstance(call, SearchCall) and (call.limit, call.by_content) for call, _ in world.asked("search")] == [
        (18, False),
        (18, True),
    ]
    assert ids(answer) == ["p39", "p38", "p37"]  # by content alone they are found, by the date's scores they win
    assert answer.items[0].paper.in_degree == 2
    assert "before 2020-06" in answer.as_of_note
    ((asked, _),) = world.asked("score")
    assert isinstance(asked, tuple)
    assert asked[1] == PartialDate(2020, 6)
    assert len(asked[0]) == 36


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
    world = World(as_of_scores={"p5": ProfileScore(0.95, 1, 0.5, 0.3, 0.2), "far": ProfileScore(0.1, 0)})
    options = Options(top_k=1, candidates=6, rerank_depth=4)
    explained = await world.recommender().explain(QUERY, "p5", options, lambda: 10.0)
    assert [(one.stage, one.rank) for one in explained.item.stages] == [("retrieval", 6)]
    assert (explained.content_share, explained.context_share, explained.citing_share) == (0.5, 0.3, 0.2)
    assert explained.item.evidence[0].text == "on p5"
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
        async def embed(self, query: Query, seconds: float) -> Embedding:
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
