"""Papers, and the conditions an answer must meet."""

from __future__ import annotations

from dataclasses import dataclass

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate, is_before


@dataclass(frozen=True, slots=True)
class ExternalId:
    """Another name of a paper, e.g. ("doi", "10.1000/182")."""

    scheme: str
    value: str


@dataclass(frozen=True, slots=True)
class Paper:
    """What is shown of a paper."""

    id: str
    title: str = ""
    abstract: str = ""
    authors: tuple[str, ...] = ()
    venue: str = ""
    published: PartialDate = UNKNOWN_DATE
    external_ids: tuple[ExternalId, ...] = ()
    in_degree: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Which papers may be answers. Year bounds are inclusive, 0 is open; no venues means all."""

    published_before: PartialDate = UNKNOWN_DATE
    year_from: int = 0
    year_to: int = 0
    venues: frozenset[str] = frozenset()
    excluded_ids: frozenset[str] = frozenset()

    def admits(self, paper: Paper) -> bool:
        """Whether the paper meets all conditions. Every store must decide the same."""
        if paper.id in self.excluded_ids or (self.venues and paper.venue not in self.venues):
            return False
        if self.published_before.known and not is_before(paper.published, self.published_before):
            return False
        if (self.year_from or self.year_to) and not paper.published.known:
            return False
        return (not self.year_from or paper.published.year >= self.year_from) and (
            not self.year_to or paper.published.year <= self.year_to
        )
