"""All ports of the recommender in memory, for tests of its orchestration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from citewell.recommender.answers import Answer
from citewell.recommender.confidence import NOT_CALIBRATED, Calibration
from citewell.recommender.ports import (
    Embedding,
    Evidence,
    EvidenceCall,
    Field,
    FoundSpan,
    Hit,
    Hits,
    ProfileScore,
    RerankCall,
    Reranked,
    Reranking,
    ScoreCall,
    SearchCall,
    SecondPhase,
    SpanCall,
    Spans,
    Vector,
)
from citewell.recommender.queries import Options
from citewell.recommender.recommend import Limits, Recommender
from citewell.recommender.settings import RecommenderSettings
from citewell.runtime.errors import CitewellError, DeadlineExceeded
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.papers import Paper
from citewell.scholarly.queries import Query, Strategy
from citewell.scholarly.second_phase import PARTS, SecondPhaseQuery
from citewell.scholarly.words import term_id

QUERY = Query("as TARGETCIT has shown", "a draft")
LIMITS = Limits.of(RecommenderSettings())


LEXICAL = LexicalQuery(Terms.of({term_id("shown"): 0.6, term_id("draft"): 0.4}), 3.0, 1.2, 0.4, 10.0)


SECOND = SecondPhaseQuery(
    np.array([0.5, 0.5], np.float32), np.array([1.0, 0.0], np.float32), np.full((len(PARTS), 2), 0.5, np.float32)
)


def paper(paper_id: str) -> Paper:
    return Paper(paper_id, f"title of {paper_id}", published=PartialDate(2010), in_degree=9)


class Clock:
    """A clock that the test advances."""

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
    contexts_read: int = 2
    scores: dict[str, ProfileScore] = field(default_factory=dict)
    cites: dict[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ("far",)
    found_spans: tuple[FoundSpan, ...] = ()
    content: dict[str, tuple[float, float]] = field(default_factory=dict)
    cut: bool = False
    mapped: tuple[float, float] | None = None
    term_weights: str = ""
    second_phase: bool = False
    """Whether the index has a second phase; it turns the order around."""

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

    async def embed(self, query: Query, as_of: PartialDate, seconds: float) -> Embedding:
        self._called("embed", (query, as_of), seconds)
        return Embedding(
            (1.0, 0.0),
            (0.5, 0.5),
            "model",
            "settings",
            context_cut=self.cut,
            view="view-1",
            lexical=LEXICAL,
            statistics="stats-1",
            hybrid=self.mapped,
            query_map="map" if self.mapped else "",
            term_weights=self.term_weights,
            second=SECOND,
        )

    async def score(self, call: ScoreCall, seconds: float) -> Mapping[str, ProfileScore]:
        self._called("score", call, seconds)
        return {each: self.scores[each] for each in call.paper_ids if each in self.scores}

    async def references(
        self, paper_ids: Sequence[str], as_of: PartialDate, seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        self._called("references", (tuple(paper_ids), as_of), seconds)
        return {each: self.cites[each] for each in paper_ids if each in self.cites}

    async def search(self, call: SearchCall, seconds: float) -> Hits:
        self._called("search", call, seconds)
        found = [each for each in self.papers if each not in call.filter.excluded_ids]
        if call.field is Field.CONTENT:
            found.reverse()
        hits = []
        for rank, each in enumerate(found):
            score = 1 - rank / 100
            if call.field is Field.HYBRID:  # = 0.4 + 3 · words
                shared = Terms.of({term_id("shown"): 0.1})
                hits.append(Hit(paper(each), score, 0.4, 0.2 - rank / 300, shared))
            else:
                hits.append(Hit(paper(each), score, score))
        if call.second is None or not self.second_phase:
            return Hits(tuple(hits[: call.limit]), True, "view-1")
        again = [
            replace(hit, second=SecondPhase(float(rank), rank, (("words", 2.0 * rank), ("citations", -1.0 * rank))))
            for rank, hit in enumerate(hits, 1)
        ]
        return Hits(tuple(again[::-1][: call.limit]), True, "view-1", "second")

    async def get(self, paper_ids: Sequence[str], full: bool, seconds: float) -> Mapping[str, Paper]:
        self._called("lookup", tuple(paper_ids), seconds)
        return {each: paper(each) for each in paper_ids if each in (*self.papers, *self.others)}

    async def contents(self, paper_ids: Sequence[str], view: str, seconds: float) -> Mapping[str, Vector]:
        self._called("diversity", tuple(paper_ids), seconds)
        return {each: self.content[each] for each in paper_ids if each in self.content}

    async def evidence(self, call: EvidenceCall, seconds: float) -> Mapping[str, tuple[Evidence, ...]]:
        self._called("evidence", call, seconds)
        texts = ("it has been shown on {}", "the second draft on {}", "a third on {}")
        return {
            each: tuple(Evidence("citer", text.format(each)) for text in texts[: call.limit_per_paper])
            for each in call.cited_ids
        }

    async def spans(self, call: SpanCall, seconds: float) -> Spans:
        self._called("search", call, seconds)
        return Spans(self.found_spans, 4.0, "view-1")

    async def rerank(self, call: RerankCall, seconds: float) -> Reranking:
        self._called("rerank", call, seconds)
        if self.reranking is not None:
            return self.reranking
        return Reranking(
            {each.paper.id: Reranked(each.rank / 100, 0.95**each.rank) for each in call.candidates}, "davinci"
        )

    async def citing_contexts(self, seconds: float) -> int:
        self._called("reranker", None, seconds)
        return self.contexts_read

    async def wait(self, token: str, seconds: float) -> None:
        self._called("watermark", token, seconds)

    def recommender(
        self, *, reranker: bool = True, watermarks: bool = True, calibration: Calibration = NOT_CALIBRATED
    ) -> Recommender:
        models = self if reranker else None
        return Recommender(self, self, self, models, self if watermarks else None, LIMITS, self.clock, calibration)

    async def ask(self, query: Query = QUERY, seconds: float = 10.0, **options: object) -> Answer:
        end = self.clock.now + seconds
        chosen = {"strategy": Strategy.HYBRID, **options}
        wanted = replace(Options(top_k=3, candidates=6, rerank_depth=4), **chosen)  # type: ignore[arg-type]
        return await self.recommender().recommend(query, wanted, lambda: end - self.clock.now)


def ids(answer: Answer) -> list[str]:
    return [item.paper.id for item in answer.items]


def reasons(answer: Answer) -> list[str]:
    return [each.reason for each in answer.degraded]
