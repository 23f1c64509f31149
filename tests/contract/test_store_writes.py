"""Writes, versions and what is read back: Index behaves the same with every store."""

import numpy as np
import pytest

from citewell.index.index import Index
from citewell.index.points import SpanPoint, unit
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.lexical import Terms
from citewell.scholarly.papers import Paper
from tests.store_world import DIMENSION, LOCAL_MODE, cosine, ids, paper, span, vector, write

pytestmark = LOCAL_MODE


async def test_an_older_version_never_replaces_a_newer_one(index: Index) -> None:
    new, old = vector(1), vector(2)
    assert await write(index, paper(0, version=5, profile=new)) == 0
    assert await write(index, paper(0, version=4, profile=old)) == 1
    assert await write(index, paper(0, version=5, profile=old)) == 0
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert stored.version == 5
    assert np.array_equal(stored.profile, unit(new))
    assert await write(index, paper(0, version=6, profile=old)) == 0
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert np.array_equal(stored.profile, unit(old))
    assert cosine(stored.content, vector(1000)) == pytest.approx(1)


async def test_a_batch_may_name_a_paper_twice_and_the_newest_stays(index: Index) -> None:
    await write(index, paper(0, version=3, profile=vector(3)), paper(0, version=2, profile=vector(2)))
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert stored.version == 3


async def test_stale_points_do_not_hold_up_the_rest_of_a_batch(index: Index) -> None:
    await write(index, *(paper(number, version=2) for number in range(0, 100, 2)))
    assert await write(index, *(paper(number) for number in range(100))) == 50
    assert len(await ids(index, vector(0))) == 100


async def test_what_was_written_is_read_back_whole(index: Index) -> None:
    written = paper(8)
    await write(index, written, span(9, 8))
    [[stored], [said]] = await index.read_points("", ["paper-008", "unheard of"], ["9>8"])
    for name in ("profile", "content"):
        assert np.allclose(getattr(stored, name), unit(getattr(written, name)), atol=1e-6)
    assert stored.paper == written.paper
    assert (stored.terms, stored.length) == (written.terms, written.length)
    assert np.allclose(said.vector, unit(span(9, 8).vector), atol=1e-6)
    expected = span(9, 8)
    assert all(getattr(said, name) == getattr(expected, name) for name in SpanPoint.__slots__ if name != "vector")


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("profile", {"profile": np.full(DIMENSION, np.nan, np.float32)}),
        ("profile", {"profile": np.full(DIMENSION, np.inf, np.float32)}),
        ("profile", {"profile": np.ones(DIMENSION + 1, np.float32)}),
        ("profile", {"profile": np.empty(0, np.float32)}),
        ("content", {"content": np.ones(3, np.float32)}),
        (r"terms.ids\[1\]", {"terms": Terms(np.array([1, 1], np.uint32), np.ones(2, np.float32))}),
        ("terms.values", {"terms": Terms(np.array([1], np.uint32), np.empty(0, np.float32))}),
        (r"terms.values\[0\]", {"terms": Terms.of({1: 0.0})}),
        (r"terms.values\[1\]", {"terms": Terms.of({1: 1.0, 2: np.nan})}),
        ("length", {"length": -1.0}),
        ("version", {"version": 0}),
        ("paper.id", {"paper": Paper("")}),
    ],
)
async def test_one_bad_point_among_a_hundred_writes_nothing(
    index: Index, field: str, broken: dict[str, object]
) -> None:
    with pytest.raises(InvalidField, match=rf"papers\[70\].{field}"):
        await write(index, *(paper(number, **(broken if number == 70 else {})) for number in range(100)))
    stats = await index.stats()
    assert (stats.papers, stats.change_number) == (0, 0)


async def test_a_write_of_another_life_of_the_ledger_is_refused(index: Index) -> None:
    with pytest.raises(FailedPrecondition, match=r"'first life'.*'second life'"):
        await write(index, paper(0), epoch="second life")
    assert await ids(index, vector(0)) == []
