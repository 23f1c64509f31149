"""The scores that rank what the reranker read: its own log-odds plus the weighted score of the second phase.

    J_i = log(S_i / (1 - S_i)) + w · z_i

S_i is DAVINCI's score (eq. 10), z_i the score of the second phase, w the setting `second_phase_weight`. DAVINCI's prior
knows the rank that the second phase gave a paper, but not how far it lies ahead of the next: z_i adds that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from citewell.recommender.ports import Candidate, Reranked

_CLOSEST = 1e-12
"""Scores are kept this far from 0 and 1, so that their log-odds are finite."""


@dataclass(frozen=True, slots=True)
class Reordered:
    """Candidates in their final order."""

    order: tuple[str, ...]
    """First what the reranker read, then the others as retrieved."""
    rerank_ranks: Mapping[str, int] = field(default_factory=dict)
    """Ranks of what it read, by the reranker's own score."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The final ranks of what it read."""
    joined: Mapping[str, float] = field(default_factory=dict)
    """J of what it read; empty where no second phase ranked it, or its weight is 0."""


def reordered(candidates: Sequence[Candidate], opinions: Mapping[str, Reranked], weight: float) -> Reordered:
    """What the reranker scored by J, or by S where there is no J, best first; ties by id."""
    read: dict[str, float] = {}
    second: dict[str, float] = {}
    for candidate in candidates:
        opinion = opinions.get(candidate.paper.id)
        if opinion is None or opinion.score is None:
            continue
        read[candidate.paper.id] = opinion.score
        if candidate.second is not None:
            second[candidate.paper.id] = candidate.second.score
    joined = {}
    if weight and len(second) == len(read):
        joined = {paper_id: log_odds(score) + weight * second[paper_id] for paper_id, score in read.items()}
    ranks = _ranks(joined or read)
    rest = (candidate.paper.id for candidate in candidates if candidate.paper.id not in read)
    return Reordered((*ranks, *rest), _ranks(read), ranks, joined)


def log_odds(score: float) -> float:
    """The log-odds of a score between 0 and 1; always finite."""
    score = min(max(score, _CLOSEST), 1 - _CLOSEST)
    return math.log(score / (1 - score))


def _ranks(scores: Mapping[str, float]) -> dict[str, int]:
    """Rank by paper id, best first, ties by id."""
    return {each: rank for rank, each in enumerate(sorted(scores, key=lambda each: (-scores[each], each)), 1)}
