"""What the client returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from citewell.recommender.v1 import recommender_pb2
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.outcomes import PublicationState
from citewell.scholarly.papers import Paper
from citewell.scholarly.positions import LogPosition


@dataclass(frozen=True, slots=True)
class StageScore:
    """One stage's opinion of an item."""

    stage: str
    """"retrieval" or "rerank"."""
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class TextRange:
    """A place in a text, in code points."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words of a paper that cites the item."""

    citing_id: str
    text: str
    published: PartialDate
    score: float
    matches: tuple[TextRange, ...] = ()
    """Words of the text that the query has too."""
    span: TextRange | None = None
    """The part of the text that speaks of the item; None = all of it."""
    support: int = 0
    """How many papers cite the item for this span."""


@dataclass(frozen=True, slots=True)
class MatchedWord:
    """A word of the query that the item's public profile has, and its share of the retrieval score."""

    word: str
    share: float


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """Shares of the retrieval score: the item's own text, what others said of it, who they are, and the words."""

    content: float
    contexts: float
    citing: float
    words: float


@dataclass(frozen=True, slots=True)
class Item:
    """A recommended paper and why it stands where it stands."""

    rank: int
    paper: Paper
    score: float
    """The last stage's."""
    stages: tuple[StageScore, ...]
    prior: float
    in_degree: int
    text_gate: float | None = None
    prior_gate: float | None = None
    confidence: float | None = None
    """How likely the item is to be cited here; None where nothing was calibrated."""
    evidence: tuple[Evidence, ...] = ()
    parts: ScoreParts | None = None
    words: tuple[MatchedWord, ...] = ()


@dataclass(frozen=True, slots=True)
class Degradation:
    """Why an answer is less than it could be: a stable reason, and words for a reader."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an answer was made from."""

    searchable: tuple[LogPosition, ...]
    """Every event before these positions is in the answer."""
    encoder_hash: str
    reranker_hash: str
    settings_hash: str
    index_view: str
    exact: bool
    statistics: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Ranked items, what they were made from, what was left out, and where the time went."""

    items: tuple[Item, ...]
    snapshot: Snapshot
    degraded: tuple[Degradation, ...]
    timings: Mapping[str, float]
    """Seconds by stage."""
    as_of_note: str
    message: recommender_pb2.RecommendResponse = field(repr=False, compare=False)
    """The answer as it came, e.g. for google.protobuf.json_format.MessageToJson."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one paper stands where it stands."""

    item: Item
    """With every stage's rank and score, also below top_k."""
    content_share: float
    context_share: float
    citing_share: float
    degraded: tuple[Degradation, ...]
    message: recommender_pb2.ExplainResponse = field(repr=False, compare=False)
    """The answer as it came."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A publication that is durable in the log."""

    event_id: str
    position: LogPosition
    token: str
    """For `status`, and for `Options.min_watermark`."""


@dataclass(frozen=True, slots=True)
class PublicationStatus:
    """How far a publication has come."""

    state: PublicationState
    outcome: str
    """APPLIED, DUPLICATE, SUPERSEDED, or a dead letter's reason; empty while only accepted."""
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


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of the log: where it begins, where its next event goes, and up to where events are applied."""

    number: int
    first_offset: int
    end_offset: int
    committed_offset: int

    @property
    def behind(self) -> int:
        """How many events are still to be applied."""
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
    """How many events were delivered again, and with which outcomes."""

    delivered: int = 0
    applied: int = 0
    duplicates: int = 0
    superseded: int = 0
    dead: int = 0
    remaining: int = 0
    """Events of the range that were not delivered yet."""

    def __add__(self, later: Replayed) -> Replayed:
        """The counts of two pages together; what remains is what the later one says."""
        counts = {name: getattr(self, name) + getattr(later, name) for name in COUNTS}
        return Replayed(**counts, remaining=later.remaining)


COUNTS = ("delivered", "applied", "duplicates", "superseded", "dead")
