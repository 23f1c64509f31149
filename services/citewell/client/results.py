"""The results of the client's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from citewell.recommender.v1 import recommender_pb2
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.outcomes import PublicationState
from citewell.scholarly.papers import Paper
from citewell.scholarly.positions import LogPosition

STAGE_NAMES = {
    "retrieval": "retrieval",
    "second_phase": "the second phase",
    "rerank": "close reading",
    "joined": "retrieval and reading together",
}
"""What people are shown for the stages."""


@dataclass(frozen=True, slots=True)
class StageScore:
    """The score and rank that one stage gave an item."""

    stage: str
    """"retrieval", "second_phase", "rerank" or "joined", in this order."""
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class TextRange:
    """A range of a text, in code points."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A context in which another paper cites the item."""

    citing_id: str
    text: str
    published: PartialDate
    score: float
    matches: tuple[TextRange, ...] = ()
    """Words of the text that also occur in the query."""
    span: TextRange | None = None
    """The part of the text about the item; None = all of it."""
    support: int = 0
    """The number of papers that cite the item for this span."""


@dataclass(frozen=True, slots=True)
class MatchedWord:
    """A word that the query and the item's public profile share, and its share of the retrieval score."""

    word: str
    share: float


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """Shares of the retrieval score: the item's own text, citing contexts, citing papers, and words."""

    content: float
    contexts: float
    citing: float
    words: float


@dataclass(frozen=True, slots=True)
class Item:
    """A recommended paper and the reasons for its rank."""

    rank: int
    paper: Paper
    score: float
    """The score of the last stage."""
    stages: tuple[StageScore, ...]
    prior: float
    in_degree: int
    text_gate: float | None = None
    prior_gate: float | None = None
    confidence: float | None = None
    """The probability that the item is cited here; None if this kind of answer is not calibrated."""
    evidence: tuple[Evidence, ...] = ()
    parts: ScoreParts | None = None
    words: tuple[MatchedWord, ...] = ()
    contributions: Mapping[str, float] = field(default_factory=dict)
    """What groups of features add to the score of the second phase, the largest first; empty if it did not rank."""


@dataclass(frozen=True, slots=True)
class Degradation:
    """Why an answer is incomplete: a stable reason, and a text for readers."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The versions of view and log that an answer was computed from."""

    searchable: tuple[LogPosition, ...]
    """The answer includes every event before these positions."""
    encoder_hash: str
    reranker_hash: str
    settings_hash: str
    index_view: str
    exact: bool
    statistics: str
    second_phase_hash: str = ""
    """Hash of the second phase's model; empty = it did not rank the answer."""
    second_phase_weight: float = 0.0
    """The weight of the second phase's scores beside the reranker's log-odds; 0 = they were not added."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Ranked items, the snapshot they come from, what is missing, and the time of each stage."""

    items: tuple[Item, ...]
    snapshot: Snapshot
    degraded: tuple[Degradation, ...]
    timings: Mapping[str, float]
    """Seconds by stage."""
    as_of_note: str
    message: recommender_pb2.RecommendResponse = field(repr=False, compare=False)
    """The original message, e.g. for google.protobuf.json_format.MessageToJson."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons for one paper's rank."""

    item: Item
    """With the rank and score of every stage, even if it is below top_k."""
    content_share: float
    context_share: float
    citing_share: float
    degraded: tuple[Degradation, ...]
    message: recommender_pb2.ExplainResponse = field(repr=False, compare=False)
    """The original message."""


class FeedbackPolicy(StrEnum):
    """What a service keeps of what writers choose."""

    OFF = "OFF"
    CHOICES = "CHOICES"
    """Ids of papers, never text."""
    TEXT = "TEXT"
    """Also the text of writers who agree."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A publication that is durable in the log."""

    event_id: str
    position: LogPosition
    token: str
    """Opaque; for `status` and `Options.min_watermark`."""


@dataclass(frozen=True, slots=True)
class PublicationStatus:
    """The state of a publication."""

    state: PublicationState
    outcome: str
    """APPLIED, DUPLICATE, SUPERSEDED, or a dead letter's reason; empty while the event is only accepted."""
    message: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that can never be applied, and why."""

    id: str
    position: LogPosition
    event_id: str
    paper_id: str
    reason: str
    message: str
    recorded: datetime
    redrive_of: str = ""
    """The id of the first dead letter of this event, if it was published again and died again."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the log: its first offset, its next offset, and the offset up to which it is applied."""

    number: int
    first_offset: int
    end_offset: int
    committed_offset: int

    @property
    def behind(self) -> int:
        """The number of events that are not applied yet."""
        return self.end_offset - max(self.committed_offset, self.first_offset)


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The event log."""

    id: str
    kind: str
    """"local" or "kafka"."""
    partitions: tuple[Partition, ...]
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The number of events that were delivered again, and their outcomes."""

    delivered: int = 0
    applied: int = 0
    duplicates: int = 0
    superseded: int = 0
    dead: int = 0
    remaining: int = 0
    """The number of events in the range that were not delivered yet."""

    def __add__(self, later: Replayed) -> Replayed:
        """The sum of two pages' counts; `remaining` is that of the later page."""
        counts = {name: getattr(self, name) + getattr(later, name) for name in COUNTS}
        return Replayed(**counts, remaining=later.remaining)


COUNTS = ("delivered", "applied", "duplicates", "superseded", "dead")
