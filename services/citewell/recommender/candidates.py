"""Candidates of a query: the best k papers by each strategy, before anything is reranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from citewell.recommender.answers import Reason
from citewell.recommender.evidence_ranking import PREFETCH, query_text, rank_papers, rank_spans
from citewell.recommender.ports import (
    Candidate,
    Embedding,
    EvidenceSearch,
    Field,
    Hit,
    Hits,
    PaperSearch,
    ProfileScore,
    QueryEncoder,
    ScoreCall,
    SearchCall,
    SpanCall,
)
from citewell.recommender.stages import OptionalStage, Run, together
from citewell.runtime.errors import NotFound, Unavailable
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.limits import MAX_QUERY_TERMS
from citewell.scholarly.papers import Paper, SearchFilter
from citewell.scholarly.queries import AsOf, Strategy
from citewell.scholarly.words import count_terms

T = TypeVar("T")

# With AS_OF_KNOWLEDGE, so many times the candidates are fetched before they are scored by what was known.
KNOWLEDGE_FETCH = 3
# GLOBAL: so many of the papers nearest to the draft say what they cite, and the share of them that cites a paper counts
# so much in its score. On acl's validation drafts this lifts MRR from 21 to 24 and R@20 from 26.5 to 28; Citeomatic's
# five are a little worse.
NEAREST = 10
CITED_WEIGHT = 1.0
# The most papers that these may add. Those that most of them cite come first.
MOST_REFERENCES = 1_000

NOBODY: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates, ranked, and the view they are from."""

    candidates: tuple[Candidate, ...]
    view: str
    exact: bool
    scores: Mapping[str, ProfileScore] = field(default_factory=dict)
    """Profile scores where the strategy needed them."""
    second_phase_hash: str = ""
    """Hash of the model that ranked the candidates again; empty = none did."""


class CandidateSearch:
    """Finds candidates by the strategy that the options name."""

    def __init__(
        self, encoder: QueryEncoder, papers: PaperSearch, evidence: EvidenceSearch, references: OptionalStage
    ) -> None:
        self._encoder, self._papers, self._evidence, self._references = encoder, papers, evidence, references

    async def find(self, run: Run, embedding: Embedding, limit: int, full: bool) -> Found:
        """At most `limit` candidates: those that the caller cannot use are not fetched."""
        match run.options.strategy:
            case Strategy.EVIDENCE:
                return await self._by_spans(run, embedding, limit, full)
            case Strategy.GLOBAL:
                return await self._for_draft(run, embedding, full)
        call = search_call(run, embedding, limit, full)
        if run.options.as_of is not AsOf.KNOWLEDGE:
            (found,) = await self._search(run, [call])
            return Found(_candidates(found.hits), found.view, found.exact, second_phase_hash=found.second_phase_hash)
        searches = await self._search(run, _for_knowledge(run, call))
        return await self._scored(run, embedding, _papers(searches), searches)

    async def scores(self, run: Run, embedding: Embedding, paper_ids: Collection[str]) -> Mapping[str, ProfileScore]:
        """The papers' scores, as of the date with AS_OF_KNOWLEDGE."""
        if not paper_ids:
            return {}
        call = ScoreCall(tuple(paper_ids), embedding.query, lexical(run, embedding), known_on(run))
        return await run.stage("score", lambda seconds: self._encoder.score(call, seconds))

    def beyond(self, run: Run, embedding: Embedding, paper: Paper, score: ProfileScore) -> Candidate:
        """A paper that was not retrieved, with the score that it has all the same; rank 0."""
        if run.options.strategy is Strategy.EVIDENCE:
            return Candidate(_as_known(run, paper, score), 0, 0.0)
        hit = _hit(_as_known(run, paper, score), score, with_words=lexical(run, embedding) is not None)
        return Candidate(hit.paper, 0, hit.score, hit.profile_score, hit.lexical_score, hit.matched)

    async def _search(self, run: Run, calls: Sequence[SearchCall]) -> list[Hits]:
        async def search(seconds: float) -> list[Hits]:
            async with together() as group:
                searches = [group.create_task(self._papers.search(each, seconds)) for each in calls]
            return [each.result() for each in searches]

        return await _in_served_view(run.stage("search", search))

    async def _scored(
        self,
        run: Run,
        embedding: Embedding,
        papers: Mapping[str, Paper],
        searches: Sequence[Hits],
        cited_by: Mapping[str, float] = NOBODY,
    ) -> Found:
        """The best k of the papers by the profiler's scores and by how many near papers cite them, ties by id."""
        scores = await self.scores(run, embedding, sorted(papers))
        with_words = lexical(run, embedding) is not None
        hits = []
        for paper_id, score in scores.items():
            hit = _hit(_as_known(run, papers[paper_id], score), score, with_words=with_words)
            hits.append(replace(hit, score=hit.score + CITED_WEIGHT * cited_by.get(paper_id, 0.0)))
        best = sorted(hits, key=lambda hit: (-hit.score, hit.paper.id))[: run.options.candidates]
        exact = all(found.exact for found in searches)
        return Found(_candidates(best), searches[0].view, exact, scores)

    async def _for_draft(self, run: Run, embedding: Embedding, full: bool) -> Found:
        """GLOBAL: what fits the draft by profile and words, and what the papers nearest by content cite."""
        call = search_call(run, embedding, run.options.candidates, full)
        calls = _for_knowledge(run, call) if run.options.as_of is AsOf.KNOWLEDGE else [call]
        # Which papers may be answers does not matter for the nearest; what is too new, and the draft, may not count.
        known = SearchFilter(call.filter.published_before, excluded_ids=frozenset(excluded_citing(run)))
        nearby = replace(call, limit=NEAREST, field=Field.CONTENT, filter=known, full=False)
        *searches, nearest = await self._search(run, [*calls, nearby])
        papers = _papers(searches)
        cited_by = await self._cited_by(run, [hit.paper.id for hit in nearest.hits])
        others = sorted(cited_by.keys() - papers.keys(), key=lambda paper_id: (-cited_by[paper_id], paper_id))
        if wanted := others[:MOST_REFERENCES]:
            found = await run.stage("lookup", lambda seconds: self._papers.get(wanted, full, seconds))
            papers |= {paper_id: paper for paper_id, paper in found.items() if call.filter.admits(paper)}
        return await self._scored(run, embedding, papers, searches, cited_by)

    async def _cited_by(self, run: Run, nearest: Sequence[str]) -> dict[str, float]:
        """For every paper that some of the nearest cite, the share of them that does."""
        if not nearest:
            return {}
        references = await self._references.result(
            run, lambda seconds: self._encoder.references(nearest, known_on(run), seconds)
        )
        votes = Counter(cited for each in (references or {}).values() for cited in set(each))
        return {paper_id: count / len(nearest) for paper_id, count in votes.items()}

    async def _by_spans(self, run: Run, embedding: Embedding, limit: int, full: bool) -> Found:
        """EVIDENCE: what others cite for spans like the query's."""
        text = query_text(run.query)
        terms = Terms.of(count_terms(text)).largest(MAX_QUERY_TERMS)
        if not len(terms):  # the query says nothing that a span could say
            return Found((), embedding.view, True)
        call = SpanCall(
            terms,
            embedding.context or embedding.query,
            PREFETCH,
            allowed(run),
            excluded_citing(run),
            embedding.view,
            embedding.model_hash,
        )
        found = await _in_served_view(run.stage("search", lambda seconds: self._evidence.spans(call, seconds)))
        ranked = rank_spans(found, text)
        cited = sorted({paper_id for span in ranked for paper_id in span.papers})
        known = await run.stage("lookup", lambda seconds: self._papers.get(cited, full, seconds)) if cited else {}
        best = rank_papers(ranked, known)[: min(limit, run.options.candidates)]
        scores: Mapping[str, ProfileScore] = {}
        if run.options.as_of is AsOf.KNOWLEDGE:  # for the in-degrees
            scores = await self.scores(run, embedding, [one.paper.id for one in best])
        candidates = tuple(
            Candidate(_as_known(run, one.paper, scores.get(one.paper.id)), rank, one.evidence.score, span=one.evidence)
            for rank, one in enumerate(best, 1)
        )
        return Found(candidates, found.view or embedding.view, True, scores)


def search_call(run: Run, embedding: Embedding, limit: int, full: bool) -> SearchCall:
    """A search by the strategy's field, with the query's filter."""
    words = lexical(run, embedding)
    return SearchCall(
        embedding.query,
        limit,
        allowed(run),
        Field.PROFILE if words is None else Field.HYBRID,
        words,
        full,
        run.options.exact,
        embedding.view,
        embedding.model_hash,
        # GLOBAL and answers as of a date rank by the profiler's scores, so their searches need no second phase.
        embedding.second if run.options.strategy is Strategy.HYBRID and not known_on(run).known else None,
    )


def allowed(run: Run) -> SearchFilter:
    """The filter of the options, and never the draft itself."""
    chosen = run.options.filter
    return replace(chosen, excluded_ids=chosen.excluded_ids | {run.query.paper_id}) if run.query.paper_id else chosen


def excluded_citing(run: Run) -> tuple[str, ...]:
    """Whose contexts are no evidence: the draft's own."""
    return (run.query.paper_id,) if run.query.paper_id else ()


def known_on(run: Run) -> PartialDate:
    """The date before which a citation must have been made to count; unknown = all count."""
    by_knowledge = run.options.as_of is AsOf.KNOWLEDGE
    return run.options.filter.published_before if by_knowledge else UNKNOWN_DATE


async def _in_served_view(search: Awaitable[T]) -> T:
    """The search's result, or Unavailable where the index lost the view that is served."""
    try:
        return await search
    except NotFound as error:
        if error.reason != "UNKNOWN_VIEW":
            raise
        raise Unavailable(
            "the index does not hold the view that is served; the profiler creates and fills it again",
            reason=Reason.INDEX_INCOMPLETE,
            stage="search",
        ) from error


def lexical(run: Run, embedding: Embedding) -> LexicalQuery | None:
    """The words that count in the retrieval score: none with PROFILE."""
    return None if run.options.strategy is Strategy.PROFILE else embedding.lexical


def _hit(paper: Paper, score: ProfileScore, *, with_words: bool) -> Hit:
    total = score.hybrid_score if with_words else score.score
    return Hit(paper, total, score.score, score.lexical_score, score.matched)


def _as_known(run: Run, paper: Paper, score: ProfileScore | None) -> Paper:
    """The paper with its in-degree as of the date."""
    if run.options.as_of is not AsOf.KNOWLEDGE:
        return paper
    return replace(paper, in_degree=score.in_degree if score else 0)


def _for_knowledge(run: Run, call: SearchCall) -> list[SearchCall]:
    """Searches by what is known today and by content, wide enough to hold the best by what was known on the date."""
    wide = replace(call, limit=KNOWLEDGE_FETCH * run.options.candidates)
    return [wide, replace(wide, field=Field.CONTENT)]


def _papers(searches: Sequence[Hits]) -> dict[str, Paper]:
    return {hit.paper.id: hit.paper for found in searches for hit in found.hits}


def _candidates(hits: Sequence[Hit]) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(hit.paper, rank, hit.score, hit.profile_score, hit.lexical_score, hit.matched, second=hit.second)
        for rank, hit in enumerate(hits, 1)
    )
