"""Dates that may be known only in part, and how they compare with a full one."""

from __future__ import annotations

import calendar
import datetime
from dataclasses import dataclass

FIRST_YEAR = 1000
LAST_YEAR = 9999


@dataclass(frozen=True, slots=True, order=True)
class PartialDate:
    """A date of which the day, or day and month, may be unknown (0). Year 0 is an unknown date."""

    year: int = 0
    month: int = 0
    day: int = 0

    def __post_init__(self) -> None:
        if self.year == 0:
            if self.month or self.day:
                raise ValueError(f"{self} has a month or day but no year")
            return
        if not FIRST_YEAR <= self.year <= LAST_YEAR:
            raise ValueError(f"year must be 0 (unknown) or {FIRST_YEAR} to {LAST_YEAR}, not {self.year}")
        if not 0 <= self.month <= 12:
            raise ValueError(f"month must be 0 (unknown) to 12, not {self.month}")
        if self.day and not self.month:
            raise ValueError(f"{self} has a day but no month")
        if self.day and not 1 <= self.day <= calendar.monthrange(self.year, self.month)[1]:
            raise ValueError(f"{self.year}-{self.month:02} has no day {self.day}")

    @classmethod
    def parse(cls, text: str) -> PartialDate:
        """The date written as YYYY, YYYY-MM or YYYY-MM-DD; empty text is the unknown date."""
        if not text:
            return UNKNOWN_DATE
        parts = text.split("-")
        if len(parts) > 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text!r} is not a date; write YYYY, YYYY-MM or YYYY-MM-DD")
        return cls(*(int(part) for part in parts))

    @property
    def known(self) -> bool:
        return self.year != 0

    def last_day(self) -> int:
        """The last day it can mean, as days since year 1; 0 when unknown.

        A paper known only by its year counts as published on that year's last day, so that it is never shown too early.
        """
        if not self.known:
            return 0
        month = self.month or 12
        day = self.day or calendar.monthrange(self.year, month)[1]
        return datetime.date(self.year, month, day).toordinal()

    def first_day(self) -> int:
        """The first day it can mean: the boundary of "before this date"."""
        if not self.known:
            return 0
        return datetime.date(self.year, self.month or 1, self.day or 1).toordinal()

    def __str__(self) -> str:
        if not self.known:
            return ""
        return "-".join([f"{self.year:04}"] + [f"{part:02}" for part in (self.month, self.day) if part])


UNKNOWN_DATE = PartialDate()


def is_before(published: PartialDate, boundary: PartialDate) -> bool:
    """Whether a paper is certainly older than the boundary's first day; never so for an unknown date."""
    return published.known and published.last_day() < boundary.first_day()
