"""How a query may be answered: options, refused with the field, its value and what would be right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from citewell.runtime.errors import InvalidField
from citewell.scholarly.limits import MAX_CANDIDATES, MAX_EVIDENCE, MAX_TOP_K, MAX_WATERMARKS
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.queries import AsOf, Strategy

DEFAULT_TOP_K = 10
DEFAULT_CANDIDATES = 300


DEFAULT_STRATEGY = Strategy.HYBRID


@dataclass(frozen=True, slots=True)
class Options:
    """How a query is to be answered."""

    top_k: int = DEFAULT_TOP_K
    candidates: int = DEFAULT_CANDIDATES
    filter: SearchFilter = field(default_factory=SearchFilter)
    as_of: AsOf = AsOf.FILTER
    evidence_per_item: int = 1
    strategy: Strategy = DEFAULT_STRATEGY
    rerank: bool = True
    rerank_depth: int = 20
    diversity: float = 0.0
    full: bool = False
    min_watermark: tuple[str, ...] = ()
    exact: bool = False
    allow_partial: bool = False
    min_confidence: float = 0.0

    def validate(self, field: str = "options") -> None:
        """Raises InvalidField for a value out of range."""
        for name, low, high in (
            ("top_k", 1, MAX_TOP_K),
            ("candidates", 1, MAX_CANDIDATES),
            ("evidence_per_item", 0, MAX_EVIDENCE),
            ("rerank_depth", 1, MAX_CANDIDATES),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidField(f"{field}.{name}", value, f"{low} to {high}", reason="OUT_OF_RANGE")
        for name in ("diversity", "min_confidence"):
            share = getattr(self, name)
            if math.isnan(share) or not 0 <= share <= 1:
                raise InvalidField(f"{field}.{name}", share, "a number from 0 to 1", reason="OUT_OF_RANGE")
        if len(self.min_watermark) > MAX_WATERMARKS:
            raise InvalidField(
                f"{field}.min_watermark", f"{len(self.min_watermark)} tokens", f"at most {MAX_WATERMARKS}"
            )
        if self.as_of is AsOf.KNOWLEDGE and not self.filter.published_before.known:
            raise InvalidField(
                f"{field}.as_of", "AS_OF_KNOWLEDGE", f"{field}.filter.published_before beside it", reason="DATE_MISSING"
            )
