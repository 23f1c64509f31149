import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate, is_before

full_dates = st.dates(datetime.date(1000, 1, 1)).map(lambda day: PartialDate(day.year, day.month, day.day))
partial_dates = st.one_of(
    full_dates, full_dates.map(lambda d: PartialDate(d.year, d.month)), full_dates.map(lambda d: PartialDate(d.year))
)


@given(partial_dates)
def test_a_date_survives_being_written_and_read(date: PartialDate) -> None:
    assert PartialDate.parse(str(date)) == date


@given(partial_dates, full_dates)
def test_a_paper_before_a_day_is_older_on_every_day_it_may_mean(published: PartialDate, boundary: PartialDate) -> None:
    expected = published.last_day() < datetime.date(boundary.year, boundary.month, boundary.day).toordinal()
    assert is_before(published, boundary) is expected
    assert published.first_day() <= published.last_day()


def test_a_paper_known_by_its_year_counts_as_that_years_last_day() -> None:
    assert not is_before(PartialDate(2020), PartialDate(2020, 12, 31))
    assert is_before(PartialDate(2020), PartialDate(2021))
    assert PartialDate(2020, 2).last_day() == datetime.date(2020, 2, 29).toordinal()


def test_an_unknown_date_is_never_surely_older() -> None:
    assert not is_before(UNKNOWN_DATE, PartialDate(9999))
    assert PartialDate.parse("") == UNKNOWN_DATE


@pytest.mark.parametrize("wrong", ["2020-13", "2021-02-29", "20", "x", "2020-1-1-1", "2020--1", "-2020", "²⁰²⁰"])
def test_what_is_no_date_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"date|year|month|day"):
        PartialDate.parse(wrong)


@pytest.mark.parametrize("parts", [(0, 1, 0), (2020, 0, 3), (999, 1, 1), (2020, 2, 30), (2020, -1, 0)])
def test_parts_that_contradict_each_other_are_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"year|month|day"):
        PartialDate(*parts)
