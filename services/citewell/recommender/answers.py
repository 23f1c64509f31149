"""What an answer consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from citewell.recommender.ports import Evidence
from citewell.scholarly.papers import Paper
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.spans import Span


class Reason(StrEnum):
    """Why an answer is less than it could be. Stable: callers may compare with them."""

    RERANKER_UNAVAILABLE = "RERANKER_UNAVAILABLE"
    RERANKER_OVERLOADED = "RERANKER_OVERLOADED"
    RERANKER_NO_MODEL = "RERANKER_NO_MODEL"
    RERANK_TIMEOUT = "RERANK_TIMEOUT"
    RERANK_PARTIAL = "RERANK_PARTIAL"
    EVIDENCE_UNAVAILABLE = "EVIDENCE_UNAVAILABLE"
    DIVERSITY_UNAVAILABLE = "DIVERSITY_UNAVAILABLE"
    WORDS_UNAVAILABLE = "WORDS_UNAVAILABLE"
    PARTS_UNAVAILABLE = "PARTS_UNAVAILABLE"
    REFERENCES_UNAVAILABLE = "REFERENCES_UNAVAILABLE"
    NOT_CALIBRATED = "NOT_CALIBRATED"
    CONTEXT_CUT = "CONTEXT_CUT"
    INDEX_INCOMPLETE = "INDEX_INCOMPLETE"


@dataclass(frozen=True, slots=True)
class Degradation:
    """A reason, and words for a reader."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class StageScore:
    """One stage's opinion: "retrieval", "second_phase", "rerank" or "joined"."""

    stage: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Shares of a retrieval score: own text, what others said, who they are, and the words.

    Together they are 1; with GLOBAL the rest comes from near papers that cite the item.
    """

    content: float
    contexts: float
    citing: float
    words: float


@dataclass(frozen=True, slots=True)
class MatchedWord:
    """A word of the query that the paper has, and its share of the retrieval score."""

    word: str
    share: float


@dataclass(frozen=True, slots=True)
class ShownEvidence:
    """A citing context, and where it has words of the query."""

    evidence: Evidence
    matches: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A recommended paper and why it stands where it stands."""

    rank: int
    paper: Paper
    stages: tuple[StageScore, ...]
    prior: float
    text_gate: float | None = None
    prior_gate: float | None = None
    evidence: tuple[ShownEvidence, ...] = ()
    confidence: float | None = None
    parts: Parts | None = None
    words: tuple[MatchedWord, ...] = ()
    contributions: tuple[tuple[str, float], ...] = ()
    """What the groups of features add to the score of the second phase, the largest first."""

    @property
    def score(self) -> float:
        """The last stage's."""
        return self.stages[-1].score


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the answer was made from."""

    searchable: tuple[LogPosition, ...]
    encoder_hash: str
    reranker_hash: str
    settings_hash: str
    index_view: str
    exact: bool
    statistics: str = ""
    second_phase_hash: str = ""
    second_phase_weight: float = 0.0
    """w of `joined_scores`; 0 = the second phase's scores were not added to the reranker's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Ranked items, what they were made from, what was left out, and where the time went."""

    items: tuple[Item, ...]
    snapshot: Snapshot
    degraded: tuple[Degradation, ...]
    timings: tuple[tuple[str, float], ...]
    as_of_note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one paper stands where it stands, and what its profile score is made of."""

    item: Item
    content_share: float
    context_share: float
    citing_share: float
    degraded: tuple[Degradation, ...]
