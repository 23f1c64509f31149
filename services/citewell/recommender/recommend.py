"""From a query to a ranked answer within the caller's time.

Query vector, search and, for some strategies, scores are needed for any answer. Reranker, evidence, diversity and the
parts of the scores are not: when one of them fails, is too slow or rests after failures, the answer goes out without it
and says so. Stages that do not need one another run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from citewell.recommender.answers import Answer, Explanation, Reason, Snapshot
from citewell.recommender.breaker import Breaker
from citewell.recommender.candidates import CandidateSearch, Found, excluded_citing, known_on, lexical
from citewell.recommender.confidence import NOT_CALIBRATED, Calibration, Signals, confidences, scorer
from citewell.recommender.diversity import diversified
from citewell.recommender.items import ItemMaker, Ranking
from citewell.recommender.joined_scores import Reordered, reordered
from citewell.recommender.ports import (
    Candidate,
    Embedding,
    Evidence,
    EvidenceCall,
    EvidenceSearch,
    PaperSearch,
    ProfileScore,
    QueryEncoder,
    Reranked,
    Reranker,
    Reranking,
    ScoreCall,
    Vector,
    Watermarks,
)
from citewell.recommender.queries import Options
from citewell.recommender.rerank_stage import RerankStage
from citewell.recommender.settings import RecommenderSettings
from citewell.recommender.stages import OptionalStage, Run, together
from citewell.runtime.errors import DeadlineExceeded, FailedPrecondition, InvalidField, NotFound, shorten
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.queries import AsOf, Query, Strategy

# Of the time left, the share that a watermark may be waited for. The rest is for the answer.
WATERMARK_SHARE = 0.8
# Of the time left, the share that evidence for the reranker may take. The rest is for the reranker.
EVIDENCE_SHARE = 0.5
# With diversity, so many times top_k papers compete for the places.
DIVERSITY_POOL = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of stages that an answer can do without."""

    rerank_seconds: float
    evidence_seconds: float
    breaker_failures: int
    breaker_rest_seconds: float
    prior_decay: float
    second_phase_weight: float
    """w of `joined_scores`."""

    @classmethod
    def of(cls, settings: RecommenderSettings) -> Limits:
        return cls(
            rerank_seconds=settings.rerank_timeout_seconds,
            evidence_seconds=settings.evidence_timeout_seconds,
            breaker_failures=settings.breaker_failures,
            breaker_rest_seconds=settings.breaker_rest_seconds,
            prior_decay=settings.prior_decay,
            second_phase_weight=settings.second_phase_weight,
        )


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
        calibration: Calibration = NOT_CALIBRATED,
    ) -> None:
        self._encoder, self._papers, self._evidence = encoder, papers, evidence
        self._watermarks, self._limits, self._clock, self._calibration = watermarks, limits, clock, calibration

        def breaker() -> Breaker:
            return Breaker(limits.breaker_failures, limits.breaker_rest_seconds, clock)

        self.breakers = {"reranker": breaker(), "index": breaker(), "profiler": breaker()}
        """service → the breaker of its optional calls. Calls that every answer needs have no breaker."""
        self._reranking = RerankStage(reranker, limits.rerank_seconds, self.breakers["reranker"], clock)

        def optional(name: str, breaker: Breaker, reason: Reason, consequence: str) -> OptionalStage:
            return OptionalStage(name, limits.evidence_seconds, breaker, reason, consequence)

        self._evidence_stage = optional(
            "evidence", self.breakers["index"], Reason.EVIDENCE_UNAVAILABLE, "items come without evidence"
        )
        self._diversity_stage = optional(
            "diversity", self.breakers["index"], Reason.DIVERSITY_UNAVAILABLE, "the order is by relevance alone"
        )
        self._parts_stage = optional(
            "parts", self.breakers["profiler"], Reason.PARTS_UNAVAILABLE, "items come without the parts of their scores"
        )
        references = optional(
            "references",
            self.breakers["profiler"],
            Reason.REFERENCES_UNAVAILABLE,
            "candidates come without what near papers cite",
        )
        self._candidates = CandidateSearch(encoder, papers, evidence, references)

    async def recommend(self, query: Query, options: Options, remaining: Callable[[], float]) -> Answer:
        """The best papers for the query. `remaining` tells the seconds left whenever it is asked."""
        run = Run(_read_by(options.strategy, query), options, remaining, self._clock)
        options.validate()
        started = self._clock()
        ranking = await self._rank(run)
        items = self._item_maker(run, ranking).items(self._chosen(run, ranking))
        run.timings["total"] = self._clock() - started
        embedding = ranking.embedding
        snapshot = Snapshot(
            embedding.searchable,
            embedding.model_hash,
            ranking.reranking.model_hash,
            embedding.settings_hash,
            ranking.found.view,
            ranking.found.exact,
            embedding.statistics,
            ranking.found.second_phase_hash,
            self._limits.second_phase_weight if ranking.final.joined else 0.0,
        )
        return Answer(items, snapshot, tuple(run.degraded), tuple(run.timings.items()), _as_of_note(options))

    async def explain(
        self, query: Query, paper_id: str, options: Options, remaining: Callable[[], float]
    ) -> Explanation:
        """Every stage's opinion of one paper, wherever it stands; NotFound for one that cannot be an answer."""
        options = replace(options, diversity=0.0, min_confidence=0.0)
        options.validate()
        run = Run(_read_by(options.strategy, query), options, remaining, self._clock)
        known = await run.stage("lookup", lambda seconds: self._papers.get([paper_id], options.full, seconds))
        if paper_id not in known:
            raise NotFound(f"paper_id is {paper_id!r}; no paper with this id can be an answer", paper_id=paper_id)
        before = options.filter.published_before
        if not SearchFilter(before).admits(known[paper_id]):
            message = f"paper_id is {paper_id!r}; it was not published before {before}, so it cannot be an answer"
            raise NotFound(message, paper_id=paper_id)
        ranking = await self._rank(run, explained=paper_id)
        scores = await self._candidates.scores(run, ranking.embedding, [paper_id])
        score = scores.get(paper_id, ProfileScore(0.0, 0))
        ranking = replace(ranking, scores={**ranking.scores, paper_id: score})
        maker = self._item_maker(run, ranking)
        if paper_id in ranking.order:
            item = maker.items(ranking.order)[ranking.order.index(paper_id)]
        else:
            item = maker.item(self._candidates.beyond(run, ranking.embedding, known[paper_id], score), 0)
        return Explanation(
            item, score.content_share, score.context_share, score.citing_share, degraded=tuple(run.degraded)
        )

    async def _rank(self, run: Run, explained: str | None = None) -> Ranking:
        await self._reach_watermarks(run)  # first, so that what the profiler then calls searchable includes them
        async with together() as group:
            embed = group.create_task(self._embed(run))
            contexts_read = group.create_task(self._reranking.contexts_read(run))
        embedding, count = embed.result(), contexts_read.result()
        found = await self._candidates.find(run, embedding, self._fetched(run, explained), self._needs_texts(run))
        candidates, view = found.candidates, found.view
        pool = candidates[: self._pool_size(run)]
        read = pool[: run.options.rerank_depth] if self._reranking.reads(run) else ()
        shown = [candidate.paper.id for candidate in pool] if explained is None else [explained]
        said: Mapping[str, tuple[Evidence, ...]] = {}
        if read and count:  # the model reads evidence, so that is searched first, for what is read
            first = [candidate.paper.id for candidate in read]
            shown = [paper_id for paper_id in shown if paper_id not in first]
            said = await self._find_evidence(run, embedding, view, first, count, EVIDENCE_SHARE)
        async with together() as group:
            reranking = group.create_task(self._reranking.rerank(run, read, said, count))
            evidence = group.create_task(self._find_evidence(run, embedding, view, shown))
            contents = group.create_task(self._contents(run, view, [candidate.paper.id for candidate in pool]))
            parts = group.create_task(self._parts(run, embedding, found, pool if explained is None else ()))
        final = reordered(candidates, reranking.result().papers, self._limits.second_phase_weight)
        order = list(final.order)
        confidence = self._confidences(run, embedding, found, reranking.result(), final)
        if contents.result():
            head = diversified(order[: len(pool)], contents.result(), run.options.diversity, run.options.top_k)
            order = list(dict.fromkeys([*head, *order]))
        return Ranking(
            embedding,
            found,
            tuple(order),
            reranking.result(),
            final,
            {**said, **evidence.result()},
            parts.result(),
            confidence,
        )

    async def _embed(self, run: Run) -> Embedding:
        embedding = await run.stage("embed", lambda seconds: self._encoder.embed(run.query, known_on(run), seconds))
        if embedding.view_incomplete:
            run.degrade(
                Reason.INDEX_INCOMPLETE, "the index is being filled from the ledger; until then papers are missing"
            )
        if embedding.context_cut:
            run.degrade(
                Reason.CONTEXT_CUT, "the context is longer than the encoder's window; it was cut around its marker"
            )
        if embedding.lexical is None and run.options.strategy in (Strategy.HYBRID, Strategy.GLOBAL):
            run.degrade(Reason.WORDS_UNAVAILABLE, "the profiler weighed no words; the scores are those of PROFILE")
        return embedding.for_hybrid if run.options.strategy is Strategy.HYBRID else embedding

    async def _reach_watermarks(self, run: Run) -> None:
        if not run.options.min_watermark:
            return
        if self._watermarks is None:
            raise FailedPrecondition(
                f"options.min_watermark is {shorten(run.options.min_watermark[0])!r}, but this recommender has no "
                "ingestion service to ask",
                reason="WATERMARK_NOT_REACHED",
            )
        watermarks = self._watermarks
        waiting = list(run.options.min_watermark)

        async def reach(token: str, seconds: float) -> None:
            await watermarks.wait(token, seconds)
            waiting.remove(token)

        async def wait(seconds: float) -> None:
            async with together() as group:
                for token in run.options.min_watermark:
                    group.create_task(reach(token, seconds))

        try:
            await run.stage("watermark", wait, reserve=(1 - WATERMARK_SHARE) * min(run.remaining(), 5.0))
        except DeadlineExceeded:
            if waiting:
                raise FailedPrecondition(
                    f"options.min_watermark: the event of {shorten(waiting[0])!r} was not searchable in time: "
                    "ingestion and the profiler have yet to say how far it is; ask again, or with a longer deadline",
                    reason="WATERMARK_NOT_REACHED",
                ) from None

    def _needs_texts(self, run: Run) -> bool:
        """Whether abstracts are needed: for the reranker, or because the caller wants them."""
        return run.options.full or self._reranking.reads(run)

    def _pool_size(self, run: Run) -> int:
        """How many of the best candidates can still become items."""
        size = run.options.top_k * (DIVERSITY_POOL if run.options.diversity else 1)
        return max(size, run.options.rerank_depth) if self._reranking.reads(run) else size

    def _fetched(self, run: Run, explained: str | None) -> int:
        """How many candidates are fetched: those that can become items, and two at least, for a margin between them."""
        candidates = run.options.candidates
        return candidates if explained is not None else min(candidates, max(self._pool_size(run), 2))

    async def _find_evidence(
        self,
        run: Run,
        embedding: Embedding,
        view: str,
        paper_ids: Sequence[str],
        for_reranker: int = 0,
        share: float = 1.0,
    ) -> Mapping[str, tuple[Evidence, ...]]:
        wanted = run.options.evidence_per_item
        if run.options.strategy is Strategy.EVIDENCE and wanted <= 1:
            wanted = 0  # each candidate has its span already
        if not paper_ids or not max(wanted, for_reranker):
            return {}
        call = EvidenceCall(
            tuple(paper_ids),
            embedding.context or embedding.query,
            max(wanted, for_reranker),
            run.options.filter.published_before,
            excluded_citing(run),
            view,
        )
        found = await self._evidence_stage.result(
            run, lambda seconds: self._evidence.evidence(call, seconds), share=share
        )
        return found or {}

    async def _contents(self, run: Run, view: str, paper_ids: Sequence[str]) -> Mapping[str, Vector]:
        if not run.options.diversity or not paper_ids:
            return {}
        contents = await self._diversity_stage.result(
            run, lambda seconds: self._papers.contents(paper_ids, view, seconds)
        )
        return contents or {}

    async def _parts(
        self, run: Run, embedding: Embedding, found: Found, pool: Sequence[Candidate]
    ) -> Mapping[str, ProfileScore]:
        """What the profile scores of possible items consist of, where that is not known yet."""
        if found.scores or not pool or run.options.strategy is Strategy.EVIDENCE:
            return found.scores
        call = ScoreCall(tuple(candidate.paper.id for candidate in pool), embedding.query, as_of=known_on(run))
        return await self._parts_stage.result(run, lambda seconds: self._encoder.score(call, seconds)) or {}

    def _confidences(
        self,
        run: Run,
        embedding: Embedding,
        found: Found,
        reranking: Reranking,
        final: Reordered,
    ) -> Mapping[str, float]:
        """The confidence of each paper that a calibration table covers. Scores as of a date have no table."""
        unread = Reranked(None, 0.0)
        signals = {
            one.paper.id: Signals(
                one.score,
                one.profile_score,
                one.lexical_score,
                reranking.papers.get(one.paper.id, unread).score,
                final.ranks.get(one.paper.id, one.rank),
                one.second.score if one.second else None,
                final.joined.get(one.paper.id),
            )
            for one in found.candidates
        }
        told = None
        if run.options.as_of is not AsOf.KNOWLEDGE:
            learned = embedding.query_map, embedding.term_weights, embedding.window_encoder
            encoder = scorer(embedding.model_hash, *(learned if run.options.strategy is Strategy.HYBRID else ()))
            told = confidences(
                self._calibration,
                run.options.strategy,
                encoder,
                reranking.model_hash,
                signals,
                found.second_phase_hash,
                self._limits.second_phase_weight if final.joined else 0.0,
            )
        if told is None and run.options.min_confidence:
            run.degrade(
                Reason.NOT_CALIBRATED, "no confidence is calibrated for such an answer; min_confidence had no effect"
            )
        return told or {}

    def _chosen(self, run: Run, ranking: Ranking) -> list[str]:
        """The items of the answer: top_k, less those of too little confidence."""
        best = ranking.order[: run.options.top_k]
        if not ranking.confidences:
            return list(best)
        return [each for each in best if ranking.confidences.get(each, 0.0) >= run.options.min_confidence]

    def _item_maker(self, run: Run, ranking: Ranking) -> ItemMaker:
        return ItemMaker(run, ranking, lexical(run, ranking.embedding), self._limits.prior_decay)


def _read_by(strategy: Strategy, query: Query) -> Query:
    """The part of the query that the strategy reads."""
    if strategy is not Strategy.GLOBAL:
        return query
    if not (query.title.strip() or query.abstract.strip()):
        raise InvalidField(
            "query.title", "", "a title or an abstract: STRATEGY_GLOBAL reads no context", reason="EMPTY_QUERY"
        )
    return replace(query, context="")


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
