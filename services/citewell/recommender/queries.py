"""What may be asked: queries and options, refused with the field, its value and what would be right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from citewell.runtime.errors import InvalidField, NotBuilt
from citewell.scholarly.contexts import TARGET, count_targets, normalise
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.publications import MAX_ABSTRACT, MAX_ID_BYTES, MAX_PASSAGE, MAX_TITLE

MAX_TOP_K = 100
MAX_CANDIDATES = 1000
MAX_EVIDENCE = 20
MAX_WATERMARKS = 100
DEFAULT_TOP_K = 10
DEFAULT_CANDIDATES = 300


class Strategy(Enum):
    """Where candidates come from."""

    PROFILE = "PROFILE"
    HYBRID = "HYBRID"
    EVIDENCE = "EVIDENCE"
    GLOBAL = "GLOBAL"


BUILT_STRATEGIES = (Strategy.PROFILE,)


class AsOf(Enum):
    """What published_before means for the ranking."""

    FILTER = "FILTER"
    KNOWLEDGE = "KNOWLEDGE"


@dataclass(frozen=True, slots=True)
class Query:
    """A citation context with its marker, and the draft it stands in."""

    context: str = ""
    title: str = ""
    abstract: str = ""
    paper_id: str = ""

    def validate(self, field: str = "query") -> None:
        """Raises InvalidField for a query that cannot be answered."""
        texts = (("context", self.context, MAX_PASSAGE), ("title", self.title, MAX_TITLE))
        for name, text, limit in (*texts, ("abstract", self.abstract, MAX_ABSTRACT)):
            if len(text) > limit:
                raise InvalidField(
                    f"{field}.{name}", f"{len(text)} characters", f"at most {limit}", reason="TEXT_TOO_LONG"
                )
        if not any(normalise(text) for text in (self.context, self.title, self.abstract)):
            raise InvalidField(field, "", "a context, a title or an abstract", reason="EMPTY_QUERY")
        if self.context and (targets := count_targets(self.context)) != 1:
            raise InvalidField(
                f"{field}.context",
                f"text with {targets} {TARGET}: {self.context}",
                f"exactly one {TARGET} where the citation is missing",
                reason="MARKER_COUNT",
            )
        if len(self.paper_id.encode()) > MAX_ID_BYTES:
            raise InvalidField(f"{field}.paper_id", self.paper_id, f"at most {MAX_ID_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Options:
    """How a query is to be answered."""

    top_k: int = DEFAULT_TOP_K
    candidates: int = DEFAULT_CANDIDATES
    filter: SearchFilter = field(default_factory=SearchFilter)
    as_of: AsOf = AsOf.FILTER
    evidence_per_item: int = 1
    strategy: Strategy = Strategy.PROFILE
    rerank: bool = True
    rerank_depth: int = 50
    diversity: float = 0.0
    full: bool = False
    min_watermark: tuple[str, ...] = ()
    exact: bool = False
    allow_partial: bool = False

    def validate(self, field: str = "options") -> None:
        """Raises InvalidField for a value out of range, NotBuilt for a strategy that is not there yet."""
        for name, low, high in (
            ("top_k", 1, MAX_TOP_K),
            ("candidates", 1, MAX_CANDIDATES),
            ("evidence_per_item", 0, MAX_EVIDENCE),
            ("rerank_depth", 1, MAX_CANDIDATES),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidField(f"{field}.{name}", value, f"{low} to {high}", reason="OUT_OF_RANGE")
        if math.isnan(self.diversity) or not 0 <= self.diversity <= 1:
            raise InvalidField(f"{field}.diversity", self.diversity, "a number from 0 to 1", reason="OUT_OF_RANGE")
        if len(self.min_watermark) > MAX_WATERMARKS:
            raise InvalidField(
                f"{field}.min_watermark", f"{len(self.min_watermark)} tokens", f"at most {MAX_WATERMARKS}"
            )
        if self.as_of is AsOf.KNOWLEDGE and not self.filter.published_before.known:
            raise InvalidField(
                f"{field}.as_of", "AS_OF_KNOWLEDGE", f"{field}.filter.published_before beside it", reason="DATE_MISSING"
            )
        if self.strategy not in BUILT_STRATEGIES:
            built = ", ".join(f"STRATEGY_{strategy.value}" for strategy in BUILT_STRATEGIES)
            raise NotBuilt(
                f"{field}.strategy is 'STRATEGY_{self.strategy.value}', which is not built yet; what works: {built}"
            )
