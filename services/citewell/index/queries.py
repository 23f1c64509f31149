"""Queries of the index and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from citewell.index.points import NO_VECTOR, PROFILE, SpanPoint, Vector
from citewell.index.second_phase_model import SecondPhaseModel, SecondScore
from citewell.index.views import View
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms
from citewell.scholarly.papers import Paper, SearchFilter
from citewell.scholarly.second_phase import SecondPhaseQuery

EVERYTHING = SearchFilter()
DEFAULT_SPANS = 50


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A search for papers. An empty view is the serving one; an empty model hash is not checked."""

    limit: int
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    lexical: LexicalQuery | None = None
    matched_terms: int = 0
    searched: str = PROFILE
    filter: SearchFilter = EVERYTHING
    index_view: str = ""
    model_hash: str = ""
    exact: bool = False
    second: SecondPhaseQuery | None = None
    """For HYBRID: rank the best candidates again, where the index has a model."""


@dataclass(frozen=True, slots=True)
class FoundPaper:
    paper: Paper
    score: float
    profile_score: float = 0.0
    lexical_score: float = 0.0
    matched: Terms = NO_TERMS
    second: SecondScore | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A ranking, the view that was searched, and the engine that answered."""

    papers: list[FoundPaper]
    view: str
    engine: str
    exact: bool
    second: SecondPhaseModel | None = None
    """The model that ranked the best of them again."""


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceSearch:
    """A search for the best citing contexts of these papers: by vector and words, or the newest if neither is given."""

    cited_ids: Sequence[str]
    limit: int
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    published_before: PartialDate = UNKNOWN_DATE
    excluded_citing_ids: Sequence[str] = ()
    index_view: str = ""
    lexical: LexicalQuery | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    span: SpanPoint
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class SpanSearch:
    """A search for spans of citing contexts by words, and for the papers that are cited for them."""

    terms: Terms
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    prefetch: int = DEFAULT_SPANS
    published_before: PartialDate = UNKNOWN_DATE
    excluded_citing_ids: Sequence[str] = ()
    filter: SearchFilter = EVERYTHING
    index_view: str = ""
    model_hash: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SpanSupport:
    """A paper cited for a span, the number of papers that cite it for that span, and the newest such context."""

    support: int
    context: SpanPoint


@dataclass(frozen=True, slots=True, eq=False)
class FoundSpan:
    """A distinct span, its rank in each ranking (0 = not among that ranking's candidates), and its largest cosine."""

    text: str
    okapi_rank: int
    plus_rank: int
    cosine_rank: int
    cosine: float
    papers: list[SpanSupport]


@dataclass(frozen=True, slots=True, eq=False)
class FoundSpans:
    spans: list[FoundSpan]
    view: str
    mean_length: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What the serving view holds."""

    view: View
    papers: int
    hidden_papers: int
    spans: int
    change_number: int
    disk_bytes: int
