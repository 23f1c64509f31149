"""The stage that reranks: which candidates are shown to the reranker, and what it reads of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from citewell.recommender.answers import Reason
from citewell.recommender.breaker import Breaker
from citewell.recommender.citing_contexts import CitingContexts
from citewell.recommender.ports import Candidate, Evidence, RerankCall, Reranker, Reranking
from citewell.recommender.stages import OptionalStage, Run
from citewell.scholarly.queries import Strategy

# The reranker was trained on marked places. A draft as a whole has none, and EVIDENCE ranks by spans alone.
RERANKED = (Strategy.PROFILE, Strategy.HYBRID)
NOTHING = Reranking({})


class RerankStage:
    """An optional stage: without it, the order is that of the retrieval."""

    def __init__(self, reranker: Reranker | None, at_most: float, breaker: Breaker, clock: Callable[[], float]) -> None:
        self._reranker = reranker
        self._citing_contexts = CitingContexts(reranker.citing_contexts, clock) if reranker else None
        self._stage = OptionalStage(
            "rerank",
            at_most,
            breaker,
            Reason.RERANKER_UNAVAILABLE,
            "the order is that of the retrieval",
            overloaded=Reason.RERANKER_OVERLOADED,
            late=Reason.RERANK_TIMEOUT,
        )

    def reads(self, run: Run) -> bool:
        """Whether the answer is to be reranked."""
        return run.options.rerank and run.options.strategy in RERANKED and self._reranker is not None

    async def contexts_read(self, run: Run) -> int | None:
        """How many citing contexts of a candidate the model reads; None = not known."""
        if self._citing_contexts is None or not self.reads(run):
            return 0
        return await self._citing_contexts.count()

    async def rerank(
        self,
        run: Run,
        candidates: Sequence[Candidate],
        said: Mapping[str, tuple[Evidence, ...]],
        contexts_read: int | None,
    ) -> Reranking:
        """The reranker's opinion of the candidates. `said` are contexts that cite them, most fitting first."""
        if self._reranker is None or self._citing_contexts is None:
            if run.options.rerank and run.options.strategy in RERANKED:
                run.degrade(Reason.RERANKER_NO_MODEL, "no reranker is set up; the order is that of the retrieval")
            return NOTHING
        if not candidates or not self.reads(run):
            return NOTHING
        reranker = self._reranker
        contexts = {
            paper_id: tuple(one.text for one in evidence[: contexts_read or 0]) for paper_id, evidence in said.items()
        }
        call = RerankCall(run.query, tuple(candidates), contexts, run.options.allow_partial)
        result = await self._stage.result(run, lambda seconds: reranker.rerank(call, seconds))
        if result is None:
            return NOTHING
        self._citing_contexts.scored_by(result.model_hash)
        if result.partial_reason == "NO_MODEL":
            run.degrade(Reason.RERANKER_NO_MODEL, "the reranker has no model; the order is that of the retrieval")
        elif result.partial_reason:
            read = sum(paper.score is not None for paper in result.papers.values())
            run.degrade(
                Reason.RERANK_PARTIAL,
                f"the reranker read {read} of {len(candidates)} candidates ({result.partial_reason.lower()})",
            )
        elif contexts_read is None:
            run.degrade(
                Reason.EVIDENCE_UNAVAILABLE, "the reranker did not say how many citing contexts it reads; it got none"
            )
        return result
