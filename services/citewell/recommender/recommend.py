"""From a query to a ranked answer: embed, search, rerank, evidence, within the caller's time.

Query vector and search are needed for any answer. Reranker, evidence and diversity are not: when one of them fails, is
too slow or is resting after failures, the answer goes out without it and says so. Stages that do not need one another
run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from citewell.recommender.answers import Answer, Explanation, Item, Reason, Snapshot, StageScore
from citewell.recommender.breaker import Breaker
from citewell.recommender.diversity import diversified
from citewell.recommender.ports import (
    Embedding,
    Evidence,
    EvidenceCall,
    EvidenceSearch,
    Hits,
    PaperSearch,
    ProfileScore,
    QueryEncoder,
    RerankCandidate,
    Reranked,
    Reranker,
    Reranking,
    SearchCall,
    Vector,
    Watermarks,
)
from citewell.recommender.queries import Options
from citewell.recommender.stages import Run, together
from citewell.runtime.errors import (
    CitewellError,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    Overloaded,
    Unavailable,
)
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import Paper
from citewell.scholarly.queries import AsOf, Query

T = TypeVar("T")

# Kept back from optional stages, for making and sending the answer without them: this, or that share of what is left.
ANSWER_SECONDS = 0.02
ANSWER_SHARE = 0.05
# Of the time left, the share a watermark may be waited for; the rest is for the answer.
WATERMARK_SHARE = 0.8
# With diversity, so many times top_k items compete for the places.
DIVERSITY_POOL = 5
# As of a date, so many times the candidates are fetched before they are scored again.
KNOWLEDGE_FETCH = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings say about stages an answer can do without."""

    rerank_seconds: float = 10.0
    evidence_seconds: float = 2.0
    breaker_failures: int = 3
    breaker_rest_seconds: float = 2.0
    prior_decay: float = 0.95


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Candidates in their final order, with everything known of them."""

    embedding: Embedding
    candidates: tuple[RerankCandidate, ...]
    order: tuple[str, ...]
    reranking: Reranking
    rerank_ranks: Mapping[str, int]
    evidence: Mapping[str, tuple[Evidence, ...]]
    view: str
    exact: bool


class Recommender:
    """Answers queries out of the other services."""

    def __init__(
        self,
        encoder: QueryEncoder,
        papers: PaperSearch,
        evidence: EvidenceSearch,
        reranker: Reranker | None,
        watermarks: Watermarks | None,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._encoder, self._papers, self._evidence = encoder, papers, evidence
        self._reranker, self._watermarks = reranker, watermarks
        self._limits, self._clock = limits, clock
        breaker = (limits.breaker_failures, limits.breaker_rest_seconds, clock)
        self._rerank_breaker, self._evidence_breaker = Breaker(*breaker), Breaker(*breaker)

    async def recommend(self, query: Query, options: Options, remaining: Callable[[], float]) -> Answer:
        """The best papers for the query. `remaining` tells the seconds left whenever it is asked."""
        options.validate()
        run = Run(query, options, remaining, self._clock)
        started = self._clock()
        ranking = await self._rank(run)
        items = self._items(ranking, ranking.order[: options.top_k])
        run.timings["total"] = self._clock() - started
        snapshot = Snapshot(
            ranking.embedding.searchable,
            ranking.embedding.model_hash,
            ranking.reranking.model_hash,
            ranking.embedding.settings_hash,
            ranking.view,
            ranking.exact,
        )
        return Answer(items, snapshot, tuple(run.degraded), tuple(run.timings.items()), _as_of_note(options))

    async def explain(
        self, query: Query, paper_id: str, options: Options, remaining: Callable[[], float]
    ) -> Explanation:
        """Every stage's opinion of one paper, wherever it stands; NotFound for one that nobody published."""
        options = replace(options, diversity=0.0)
        options.validate()
        run = Run(query, options, remaining, self._clock)
        paper = await run.stage("lookup", lambda seconds: self._papers.get(paper_id, seconds))
        if paper is None:
            raise NotFound(f"paper_id is {paper_id!r}; no paper with this id can be an answer", paper_id=paper_id)
        ranking = await self._rank(run, explained=paper_id)
        scored = await self._scores(run, [paper_id], ranking.embedding.query)
        share = scored.get(paper_id, ProfileScore(0.0, 0))
        if paper_id in ranking.order:
            item = self._items(ranking, ranking.order)[ranking.order.index(paper_id)]
        else:  # not among the candidates: no rank, but a score all the same
            item = Item(0, paper, (StageScore("retrieval", 0, share.score),), 0.0)
        return Explanation(
            item, share.content_share, share.context_share, share.citing_share, degraded=tuple(run.degraded)
        )

    async def _rank(self, run: Run, explained: str | None = None) -> _Ranking:
        await self._reach_watermarks(run)  # first: what the profiler then calls searchable includes them
        embedding = await run.stage("embed", lambda seconds: self._encoder.embed(run.query, seconds))
        if embedding.view_incomplete:
            run.degrade(
                Reason.INDEX_INCOMPLETE,
                "the index is being filled from the ledger; until then papers are missing",
            )
        if embedding.context_cut:
            run.degrade(
                Reason.CONTEXT_CUT, "the context is longer than the encoder's window; it was cut around its marker"
            )
        candidates, view, exact = await self._candidates(run, embedding, everything=explained is not None)
        pool = candidates[: self._pool_size(run.options)]
        shown = [candidate.paper.id for candidate in pool] if explained is None else [explained]
        async with together() as group:
            reranking = group.create_task(self._rerank(run, pool[: run.options.rerank_depth]))
            evidence = group.create_task(self._find_evidence(run, embedding, view, shown))
            contents = group.create_task(self._contents(run, view, [candidate.paper.id for candidate in pool]))
        order, ranks = _reordered(candidates, reranking.result().papers)
        if contents.result():
            head = diversified(order[: len(pool)], contents.result(), run.options.diversity, run.options.top_k)
            order = list(dict.fromkeys([*head, *order]))
        return _Ranking(
            embedding, tuple(candidates), tuple(order), reranking.result(), ranks, evidence.result(), view, exact
        )

    async def _reach_watermarks(self, run: Run) -> None:
        if not run.options.min_watermark:
            return
        if self._watermarks is None:
            raise FailedPrecondition(
                "options.min_watermark is set, but this recommender has no ingestion service to ask",
                reason="WATERMARK_NOT_REACHED",
            )
        watermarks = self._watermarks

        async def wait(seconds: float) -> None:
            async with together() as group:
                for token in run.options.min_watermark:
                    group.create_task(watermarks.wait(token, seconds))

        try:
            await run.stage("watermark", wait, reserve=(1 - WATERMARK_SHARE) * min(run.remaining(), 5.0))
        except DeadlineExceeded:
            raise FailedPrecondition(
                "options.min_watermark was not searchable in time; ask again, or with a longer deadline",
                reason="WATERMARK_NOT_REACHED",
            ) from None

    async def _candidates(
        self, run: Run, embedding: Embedding, everything: bool
    ) -> tuple[list[RerankCandidate], str, bool]:
        """The k nearest admitted papers, ranked; with as-of KNOWLEDGE by what was known on the date.

        Unless all of them are to be told, those that cannot become items are not even fetched.
        """
        options = run.options
        allowed = options.filter
        if run.query.paper_id:
            allowed = replace(allowed, excluded_ids=allowed.excluded_ids | {run.query.paper_id})
        by_knowledge = options.as_of is AsOf.KNOWLEDGE
        wanted = options.candidates if everything else min(options.candidates, self._pool_size(options))
        call = SearchCall(
            embedding.query,
            KNOWLEDGE_FETCH * options.candidates if by_knowledge else wanted,
            allowed,
            full=options.full or (options.rerank and self._reranker is not None),
            exact=options.exact,
            view=embedding.view,
            model_hash=embedding.model_hash,
        )
        calls = [call, replace(call, by_content=True)] if by_knowledge else [call]

        async def search(seconds: float) -> list[Hits]:
            async with together() as group:
                searches = [group.create_task(self._papers.search(each, seconds)) for each in calls]
            return [each.result() for each in searches]

        try:
            found = await run.stage("search", search)
        except NotFound as error:
            if error.reason != "UNKNOWN_VIEW":
                raise
            raise Unavailable(
                "the index does not hold the view that is served; the profiler creates and fills it again",
                reason=Reason.INDEX_INCOMPLETE,
                stage="search",
            ) from error
        scored = [(hit.paper, hit.score) for hits in found for hit in hits.hits]
        if by_knowledge:
            scored = await self._as_known(run, {paper.id: paper for paper, _ in scored}, embedding.query)
        candidates = [RerankCandidate(paper, rank, score) for rank, (paper, score) in enumerate(scored, 1)]
        return candidates, found[0].view, all(hits.exact for hits in found)

    async def _as_known(self, run: Run, papers: Mapping[str, Paper], vector: Vector) -> list[tuple[Paper, float]]:
        """The best k by profile score as of the date, in-degrees as of the date."""
        scores = await self._scores(run, list(papers), vector) if papers else {}
        best = sorted(scores, key=lambda paper_id: (-scores[paper_id].score, paper_id))[: run.options.candidates]
        return [
            (replace(papers[paper_id], in_degree=scores[paper_id].in_degree), scores[paper_id].score)
            for paper_id in best
        ]

    async def _scores(self, run: Run, paper_ids: Sequence[str], vector: Vector) -> Mapping[str, ProfileScore]:
        by_knowledge = run.options.as_of is AsOf.KNOWLEDGE
        as_of = run.options.filter.published_before if by_knowledge else PartialDate()
        return await run.stage("score", lambda seconds: self._encoder.score(paper_ids, vector, as_of, seconds))

    def _pool_size(self, options: Options) -> int:
        """How many of the best candidates can still become items."""
        size = options.top_k * (DIVERSITY_POOL if options.diversity else 1)
        if options.rerank and self._reranker is not None:
            size = max(size, options.rerank_depth)
        return size

    async def _rerank(self, run: Run, candidates: Sequence[RerankCandidate]) -> Reranking:
        nothing = Reranking({})
        if not run.options.rerank or not candidates:
            return nothing
        if self._reranker is None:
            run.degrade(Reason.RERANKER_NO_MODEL, "no reranker is set up; the order is that of the retrieval")
            return nothing
        reranker, allow_partial = self._reranker, run.options.allow_partial
        result = await self._optional(
            run,
            "rerank",
            lambda seconds: reranker.rerank(run.query, candidates, allow_partial, seconds),
            self._limits.rerank_seconds,
            self._rerank_breaker,
            Reason.RERANKER_UNAVAILABLE,
            "the order is that of the retrieval",
        )
        if result is None:
            return nothing
        if result.partial_reason == "NO_MODEL":
            run.degrade(Reason.RERANKER_NO_MODEL, "the reranker has no model; the order is that of the retrieval")
        elif result.partial_reason:
            read = sum(paper.score is not None for paper in result.papers.values())
            run.degrade(
                Reason.RERANK_PARTIAL,
                f"the reranker read {read} of {len(candidates)} candidates ({result.partial_reason.lower()})",
            )
        return result

    async def _find_evidence(
        self, run: Run, embedding: Embedding, view: str, paper_ids: Sequence[str]
    ) -> Mapping[str, tuple[Evidence, ...]]:
        if not run.options.evidence_per_item or not paper_ids:
            return {}
        call = EvidenceCall(
            tuple(paper_ids),
            embedding.context or embedding.query,
            run.options.evidence_per_item,
            run.options.filter.published_before,
            (run.query.paper_id,) if run.query.paper_id else (),
            view,
        )
        found = await self._optional(
            run,
            "evidence",
            lambda seconds: self._evidence.evidence(call, seconds),
            self._limits.evidence_seconds,
            self._evidence_breaker,
            Reason.EVIDENCE_UNAVAILABLE,
            "items come without evidence",
        )
        return found or {}

    async def _contents(self, run: Run, view: str, paper_ids: Sequence[str]) -> Mapping[str, Vector]:
        if not run.options.diversity or not paper_ids:
            return {}
        contents = await self._optional(
            run,
            "diversity",
            lambda seconds: self._papers.contents(paper_ids, view, seconds),
            self._limits.evidence_seconds,
            self._evidence_breaker,
            Reason.DIVERSITY_UNAVAILABLE,
            "the order is by relevance alone",
        )
        return contents or {}

    async def _optional(
        self,
        run: Run,
        name: str,
        work: Callable[[float], Coroutine[None, None, T]],
        at_most: float,
        breaker: Breaker,
        reason: Reason,
        consequence: str,
    ) -> T | None:
        """The stage's result, or None and a degradation: nothing that an answer can do without fails it."""
        if not breaker.admits():
            run.degrade(reason, f"{name} failed repeatedly and is left alone for a moment; {consequence}")
            return None
        reserve = max(ANSWER_SECONDS, ANSWER_SHARE * run.remaining())
        try:
            result = await run.stage(name, work, at_most=at_most, reserve=reserve)
        except Overloaded as error:  # alive and honest: asking again later is right, resting is not needed
            overloaded = Reason.RERANKER_OVERLOADED if reason is Reason.RERANKER_UNAVAILABLE else reason
            run.degrade(overloaded, f"{error.message}; {consequence}")
            return None
        except DeadlineExceeded as error:
            if run.remaining() > 2 * reserve:  # the stage's own limit, not the caller's haste
                breaker.failed()
            late = Reason.RERANK_TIMEOUT if reason is Reason.RERANKER_UNAVAILABLE else reason
            run.degrade(late, f"{error.message}; {consequence}")
            return None
        except CitewellError as error:
            breaker.failed()
            run.degrade(reason, f"{error.message}; {consequence}")
            return None
        breaker.succeeded()
        return result

    def _items(self, ranking: _Ranking, paper_ids: Sequence[str]) -> tuple[Item, ...]:
        candidates = {candidate.paper.id: candidate for candidate in ranking.candidates}
        return tuple(self._item(ranking, candidates[paper_id], rank) for rank, paper_id in enumerate(paper_ids, 1))

    def _item(self, ranking: _Ranking, candidate: RerankCandidate, rank: int) -> Item:
        paper_id = candidate.paper.id
        opinion = ranking.reranking.papers.get(paper_id, Reranked(None, self._limits.prior_decay**candidate.rank))
        stages = [StageScore("retrieval", candidate.rank, candidate.score)]
        if opinion.score is not None:
            stages.append(StageScore("rerank", ranking.rerank_ranks[paper_id], opinion.score))
        return Item(
            rank,
            candidate.paper,
            tuple(stages),
            opinion.prior,
            opinion.text_gate,
            opinion.prior_gate,
            ranking.evidence.get(paper_id, ()),
        )


def _reordered(
    candidates: Sequence[RerankCandidate], opinions: Mapping[str, Reranked]
) -> tuple[list[str], dict[str, int]]:
    """Those the reranker scored, best first and ties by id; behind them the others as retrieved. And its ranks."""
    scores = {paper_id: paper.score for paper_id, paper in opinions.items() if paper.score is not None}
    retrieved = [candidate.paper.id for candidate in candidates]
    read = sorted((paper_id for paper_id in retrieved if paper_id in scores), key=lambda each: (-scores[each], each))
    ranks = {paper_id: rank for rank, paper_id in enumerate(read, 1)}
    return read + [paper_id for paper_id in retrieved if paper_id not in scores], ranks


def _as_of_note(options: Options) -> str:
    before = options.filter.published_before
    if not before.known:
        return ""
    if options.as_of is AsOf.FILTER:
        return (
            f"Items and evidence are dated before {before}; their scores and in-degrees may rest on citations made "
            "later. AS_OF_KNOWLEDGE leaves those out."
        )
    return (
        f"Items, evidence, scores, priors and in-degrees rest on papers dated before {before} alone. Texts are the "
        "newest revisions, and each model knows what it was trained on: see Info."
    )
