"""What the recommender needs from others. Every call gets the seconds it may take and raises errors of our own tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.papers import Paper, SearchFilter
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.queries import Query

Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Embedding:
    """v_q (eq. 4), and what the profiler knew when it made it."""

    query: Vector
    context: Vector
    model_hash: str = ""
    settings_hash: str = ""
    context_cut: bool = False
    view_incomplete: bool = False
    searchable: tuple[LogPosition, ...] = ()
    view: str = ""


@dataclass(frozen=True, slots=True)
class ProfileScore:
    """eq. 5 with the citations known on a date, and how many those were."""

    score: float
    in_degree: int
    content_share: float = 0.0
    context_share: float = 0.0
    citing_share: float = 0.0


class QueryEncoder(Protocol):
    """The profiler's reads."""

    async def embed(self, query: Query, seconds: float) -> Embedding: ...

    async def score(
        self, paper_ids: Sequence[str], vector: Vector, as_of: PartialDate, seconds: float
    ) -> Mapping[str, ProfileScore]:
        """Scores of the known ones among the papers."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper the search found."""

    paper: Paper
    score: float


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first, ties by paper id."""

    hits: tuple[Hit, ...]
    exact: bool = False
    view: str = ""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search of the serving view."""

    vector: Vector
    limit: int
    filter: SearchFilter
    by_content: bool = False
    full: bool = False
    exact: bool = False
    view: str = ""
    model_hash: str = ""


class PaperSearch(Protocol):
    """The index's papers."""

    async def search(self, call: SearchCall, seconds: float) -> Hits: ...

    async def get(self, paper_id: str, seconds: float) -> Paper | None: ...

    async def contents(self, paper_ids: Sequence[str], view: str, seconds: float) -> Mapping[str, Vector]:
        """Content vectors of the stored ones among the papers."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Words of a paper that cites the item."""

    citing_id: str
    text: str
    published: PartialDate = UNKNOWN_DATE
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class EvidenceCall:
    """The citing contexts of some papers that are nearest to the query's."""

    cited_ids: tuple[str, ...]
    vector: Vector
    limit_per_paper: int
    published_before: PartialDate = UNKNOWN_DATE
    excluded_citing_ids: tuple[str, ...] = ()
    view: str = ""


class EvidenceSearch(Protocol):
    """The index's spans."""

    async def evidence(self, call: EvidenceCall, seconds: float) -> Mapping[str, tuple[Evidence, ...]]: ...


@dataclass(frozen=True, slots=True)
class RerankCandidate:
    """A retrieved paper with its 1-indexed rank."""

    paper: Paper
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Reranked:
    """What the reranker thinks of one paper; no score where it did not read it."""

    score: float | None
    prior: float
    text_gate: float | None = None
    prior_gate: float | None = None


@dataclass(frozen=True, slots=True)
class Reranking:
    """What the reranker thinks of the papers it was shown."""

    papers: Mapping[str, Reranked]
    model_hash: str = ""
    partial_reason: str = ""


class Reranker(Protocol):
    """DAVINCI, wherever it runs."""

    async def rerank(
        self, query: Query, candidates: Sequence[RerankCandidate], allow_partial: bool, seconds: float
    ) -> Reranking: ...


class Watermarks(Protocol):
    """How far the serving view has come."""

    async def wait(self, token: str, seconds: float) -> None:
        """Returns when the token's event is searchable; FailedPrecondition when it is not in time, or never will be."""
