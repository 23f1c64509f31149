"""What the recommender needs from other services. Every call gets the seconds it may take and raises our own errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms
from citewell.scholarly.papers import Paper, SearchFilter
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.queries import Query
from citewell.scholarly.second_phase import SecondPhaseQuery
from citewell.scholarly.spans import Span

Vector = Sequence[float]

WHOLE_TEXT = Span(0, 0)
MATCHED_TERMS = 10
"""So many words that query and paper share are told of each paper at most."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """v_q (eq. 4) and the weighted words of a query, and the state of the profiler that made them."""

    query: Vector
    context: Vector
    model_hash: str = ""
    settings_hash: str = ""
    context_cut: bool = False
    view_incomplete: bool = False
    searchable: tuple[LogPosition, ...] = ()
    view: str = ""
    lexical: LexicalQuery | None = None
    statistics: str = ""
    hybrid: Vector | None = None
    """The query's vector for HYBRID by the learned query map; None = there is no map, and `query` serves."""
    query_map: str = ""
    """Hash of that map."""
    term_weights: str = ""
    """Hash of the learned weights by which the words in `lexical` are weighed; empty = there are none."""
    window_encoder: str = ""
    """Hash of the encoder of the window's vector in `second`; empty = there is none."""

    @property
    def for_hybrid(self) -> Embedding:
        """The embedding that HYBRID searches and scores with."""
        return self if self.hybrid is None else replace(self, query=self.hybrid)

    second: SecondPhaseQuery | None = None
    """The query for the second phase; None where it has no context or was embedded as of a date."""


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """Papers to be scored for a query by the citations known on a date."""

    paper_ids: tuple[str, ...]
    vector: Vector
    lexical: LexicalQuery | None = None
    as_of: PartialDate = UNKNOWN_DATE


@dataclass(frozen=True, slots=True)
class ProfileScore:
    """A paper's score by the citations known on a date, how many those were, and what the score is made of."""

    score: float
    """The cosine, eq. 5."""
    in_degree: int
    content_share: float = 0.0
    context_share: float = 0.0
    citing_share: float = 0.0
    lexical_score: float = 0.0
    hybrid_score: float = 0.0
    matched: Terms = field(default_factory=lambda: NO_TERMS)


class QueryEncoder(Protocol):
    """The profiler's reads."""

    async def embed(self, query: Query, as_of: PartialDate, seconds: float) -> Embedding:
        """The query's vector and words. With a date, words are weighed by what was known before it."""

    async def score(self, call: ScoreCall, seconds: float) -> Mapping[str, ProfileScore]:
        """Scores of the known ones among the papers."""

    async def references(
        self, paper_ids: Sequence[str], as_of: PartialDate, seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """What each known one of the papers cites."""


class Field(Enum):
    """Which form of a paper is searched."""

    PROFILE = "profile"
    CONTENT = "content"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper that a search found, with the parts of a HYBRID score."""

    paper: Paper
    score: float
    profile_score: float = 0.0
    lexical_score: float = 0.0
    matched: Terms = field(default_factory=lambda: NO_TERMS)
    second: SecondPhase | None = None


@dataclass(frozen=True, slots=True)
class SecondPhase:
    """What the second phase says of a paper that it ranked."""

    score: float
    first_rank: int
    contributions: tuple[tuple[str, float], ...] = ()
    """What the groups of features add to the score, by name, the largest first."""


@dataclass(frozen=True, slots=True)
class Hits:
    """The papers that a search found, best first, ties by paper id."""

    hits: tuple[Hit, ...]
    exact: bool = False
    view: str = ""
    second_phase_hash: str = ""
    """Hash of the model that ranked the best ones again; empty = none did."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search of the serving view."""

    vector: Vector
    limit: int
    filter: SearchFilter
    field: Field = Field.PROFILE
    lexical: LexicalQuery | None = None
    full: bool = False
    exact: bool = False
    view: str = ""
    model_hash: str = ""
    second: SecondPhaseQuery | None = None


class PaperSearch(Protocol):
    """The index's papers."""

    async def search(self, call: SearchCall, seconds: float) -> Hits: ...

    async def get(self, paper_ids: Sequence[str], full: bool, seconds: float) -> Mapping[str, Paper]:
        """Those of the papers that can be answers."""

    async def contents(self, paper_ids: Sequence[str], view: str, seconds: float) -> Mapping[str, Vector]:
        """Content vectors of the stored ones among the papers."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A context in which another paper cites the item."""

    citing_id: str
    text: str
    published: PartialDate = UNKNOWN_DATE
    score: float = 0.0
    span: Span = WHOLE_TEXT
    """The part of the text that speaks of the item; length 0 = all of it."""
    support: int = 0
    """How many papers cite the item for the span; 0 = not counted."""


@dataclass(frozen=True, slots=True)
class EvidenceCall:
    """Asks for the contexts that cite each paper, the nearest to the query first."""

    cited_ids: tuple[str, ...]
    vector: Vector
    limit_per_paper: int
    published_before: PartialDate = UNKNOWN_DATE
    excluded_citing_ids: tuple[str, ...] = ()
    view: str = ""


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """A distinct span of citing sentences, its ranks (1-indexed, 0 = not among the prefetched), and what it cites."""

    text: str
    okapi_rank: int
    plus_rank: int
    cosine: float
    papers: Mapping[str, Evidence]


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans found for a query."""

    spans: tuple[FoundSpan, ...]
    mean_length: float
    """Mean number of words of a stored span."""
    view: str = ""


@dataclass(frozen=True, slots=True)
class SpanCall:
    """Asks for the spans that fit a query."""

    terms: Terms
    """How often each term stands in the query."""
    vector: Vector
    prefetch: int
    filter: SearchFilter
    excluded_citing_ids: tuple[str, ...] = ()
    view: str = ""
    model_hash: str = ""


class EvidenceSearch(Protocol):
    """The index's citing contexts and their spans."""

    async def evidence(self, call: EvidenceCall, seconds: float) -> Mapping[str, tuple[Evidence, ...]]: ...

    async def spans(self, call: SpanCall, seconds: float) -> Spans: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A retrieved paper with its 1-indexed rank, its retrieval score, and what that is made of."""

    paper: Paper
    rank: int
    score: float
    profile_score: float = 0.0
    lexical_score: float = 0.0
    matched: Terms = field(default_factory=lambda: NO_TERMS)
    span: Evidence | None = None
    """With EVIDENCE: the span that the paper is cited for."""
    second: SecondPhase | None = None


@dataclass(frozen=True, slots=True)
class Reranked:
    """The reranker's opinion of one paper; no score where it did not read it."""

    score: float | None
    prior: float
    text_gate: float | None = None
    prior_gate: float | None = None


@dataclass(frozen=True, slots=True)
class Reranking:
    """The reranker's opinion of the papers it was shown."""

    papers: Mapping[str, Reranked]
    model_hash: str = ""
    partial_reason: str = ""


@dataclass(frozen=True, slots=True)
class RerankCall:
    """Candidates to be read, and what others said when citing them, the most fitting first."""

    query: Query
    candidates: tuple[Candidate, ...]
    contexts: Mapping[str, tuple[str, ...]]
    allow_partial: bool


class Reranker(Protocol):
    """DAVINCI, wherever it runs."""

    async def rerank(self, call: RerankCall, seconds: float) -> Reranking: ...

    async def citing_contexts(self, seconds: float) -> int:
        """How many citing contexts of each candidate the model reads."""


class Watermarks(Protocol):
    """Which events are searchable."""

    async def wait(self, token: str, seconds: float) -> None:
        """Returns when the token's event is searchable; FailedPrecondition when it is not in time, or never will be."""
