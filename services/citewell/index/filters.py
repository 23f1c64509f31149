"""Conditions on points that every store can apply before it selects the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from citewell.index.points import Point, point_id
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import SearchFilter


@dataclass(frozen=True, slots=True)
class Between:
    """The integer is at least `least` and below `below`; None = no bound."""

    key: str
    least: int | None = None
    below: int | None = None


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The text is one of these."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """The text is none of these."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotThese:
    """The point is none of these."""

    ids: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class These:
    """The point is one of these."""

    ids: frozenset[UUID]


Condition = Between | AnyOf | NoneOf | NotThese | These

VISIBLE = Between("hidden", below=1)


def paper_conditions(search_filter: SearchFilter) -> tuple[Condition, ...]:
    """SearchFilter.admits as conditions for a store. Hidden papers need none: without vectors no search finds them."""
    conditions: list[Condition] = []
    if search_filter.published_before.known:
        conditions.append(before(search_filter.published_before))
    if search_filter.year_from or search_filter.year_to:
        below = search_filter.year_to + 1 if search_filter.year_to else None
        conditions.append(Between("year", least=search_filter.year_from or 1, below=below))
    if search_filter.venues:
        conditions.append(AnyOf("venue", tuple(sorted(search_filter.venues))))
    if search_filter.excluded_ids:
        conditions.append(NotThese(frozenset(point_id(paper_id) for paper_id in search_filter.excluded_ids)))
    return tuple(conditions)


def span_conditions(
    cited_id: str, published_before: PartialDate, excluded_citing_ids: Iterable[str]
) -> tuple[Condition, ...]:
    """The spans that may be shown as evidence for a paper."""
    conditions: list[Condition] = [AnyOf("cited_id", (cited_id,)), VISIBLE]
    if published_before.known:
        conditions.append(before(published_before))
    if excluded := tuple(sorted(excluded_citing_ids)):
        conditions.append(NoneOf("citing_id", excluded))
    return tuple(conditions)


def holds(condition: Condition, point: Point) -> bool:
    """Whether a point that was read meets a condition."""
    match condition:
        case Between(key, least, below):
            value = point.payload[key]
            return (least is None or value >= least) and (below is None or value < below)
        case AnyOf(key, values):
            return point.payload[key] in values
        case NoneOf(key, values):
            return point.payload[key] not in values
        case NotThese(ids):
            return point.id not in ids
        case These(ids):
            return point.id in ids


def before(boundary: PartialDate) -> Between:
    """Certainly published before the first day that this date can mean."""
    # An unknown date is day 0, which is never certainly older than another date.
    return Between("last_day", least=1, below=boundary.first_day())
