"""From a ranking to items: each with its scores, their parts, the words and the evidence behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from citewell.recommender.answers import Item, Parts, ShownEvidence, StageScore
from citewell.recommender.candidates import Found
from citewell.recommender.joined_scores import Reordered
from citewell.recommender.matches import QueryWords
from citewell.recommender.ports import Candidate, Embedding, Evidence, ProfileScore, Reranked, Reranking
from citewell.recommender.stages import Run
from citewell.scholarly.lexical import LexicalQuery
from citewell.scholarly.queries import Strategy


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates in their final order, with everything known of them."""

    embedding: Embedding
    found: Found
    order: tuple[str, ...]
    reranking: Reranking
    final: Reordered
    evidence: Mapping[str, tuple[Evidence, ...]]
    scores: Mapping[str, ProfileScore]
    """What the profile scores consist of, by paper."""
    confidences: Mapping[str, float]


class ItemMaker:
    """Makes the items of one answer."""

    def __init__(self, run: Run, ranking: Ranking, lexical: LexicalQuery | None, prior_decay: float) -> None:
        self._options, self._ranking, self._lexical, self._decay = run.options, ranking, lexical, prior_decay
        self._words = QueryWords.of(run.query, run.options.strategy)
        self._candidates = {candidate.paper.id: candidate for candidate in ranking.found.candidates}

    def items(self, paper_ids: Sequence[str]) -> tuple[Item, ...]:
        """The candidates as items, ranked as they come."""
        return tuple(self.item(self._candidates[paper_id], rank) for rank, paper_id in enumerate(paper_ids, 1))

    def item(self, candidate: Candidate, rank: int) -> Item:
        """One paper; rank 0 is one that was not retrieved."""
        paper_id = candidate.paper.id
        prior = self._decay**candidate.rank if candidate.rank else 0.0
        opinion = self._ranking.reranking.papers.get(paper_id, Reranked(None, prior))
        second, final = candidate.second, self._ranking.final
        stages = [StageScore("retrieval", second.first_rank if second else candidate.rank, candidate.score)]
        if second:
            stages.append(StageScore("second_phase", candidate.rank, second.score))
        if opinion.score is not None:
            stages.append(StageScore("rerank", final.rerank_ranks[paper_id], opinion.score))
        if paper_id in final.joined:
            stages.append(StageScore("joined", final.ranks[paper_id], final.joined[paper_id]))
        return Item(
            rank,
            candidate.paper,
            tuple(stages),
            opinion.prior,
            opinion.text_gate,
            opinion.prior_gate,
            self._evidence(candidate),
            self._ranking.confidences.get(paper_id),
            self._parts(candidate),
            self._words.matched(candidate.matched, self._lexical, candidate.score),
            second.contributions if second else (),
        )

    def _evidence(self, candidate: Candidate) -> tuple[ShownEvidence, ...]:
        """The evidence to show, at most as much as asked for. With EVIDENCE the span comes first, always."""
        found = list(self._ranking.evidence.get(candidate.paper.id, ()))
        wanted = self._options.evidence_per_item
        if candidate.span is not None:
            told = (candidate.span.citing_id, candidate.span.text)
            found = [candidate.span, *(one for one in found if (one.citing_id, one.text) != told)]
            wanted = max(wanted, 1)
        return tuple(ShownEvidence(one, self._words.places(one.text)) for one in found[:wanted])

    def _parts(self, candidate: Candidate) -> Parts | None:
        shares = self._ranking.scores.get(candidate.paper.id)
        if shares is None or candidate.score <= 0 or self._options.strategy is Strategy.EVIDENCE:
            return None
        words = self._lexical.weight * candidate.lexical_score / candidate.score if self._lexical else 0.0
        vector = candidate.profile_score / candidate.score
        return Parts(vector * shares.content_share, vector * shares.context_share, vector * shares.citing_share, words)
