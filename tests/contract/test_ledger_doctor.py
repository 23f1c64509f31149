"""Contract tests: the doctor finds and repairs what ledger and index hold wrongly, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from citewell.profiler.doctor import check_profiles
from citewell.profiler.ledger import filling, schema
from citewell.profiler.ledger.lifecycle import (
    start_rebuild,
    try_switch,
)
from citewell.profiler.ledger.views import serving_view
from citewell.runtime.errors import NotFound
from citewell.scholarly.contexts import MaskedContext
from tests.ledger_suite import WEIGHTS, World, paper
from tests.ledger_world import EVERY_YEAR


def test_the_doctor_repairs_an_index_that_lost_everything(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"))
    world.check()
    world.index.lose_everything()
    report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
    assert {fault.kind for fault in report.faults} == {"INDEX_MISSING"}
    assert report.repaired == 2
    with pytest.raises(NotFound):
        world.project()
    world.check()


def test_the_doctor_repairs_totals(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a", published="2021"), paper("d", "b"))
    world.check()
    table = schema.year_sums
    for damage in (
        sa.delete(table).where(table.c.year == EVERY_YEAR),  # a profiler of an older version applied an event
        sa.update(table).where(table.c.year == EVERY_YEAR).values(contents=bytes(8 * world.encoder.dimension)),
        sa.update(table).where(table.c.cited == "b").values(year=EVERY_YEAR),
    ):
        with world.database.writing() as connection:
            connection.execute(damage)
        report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
        assert any("all years" in fault.detail for fault in report.faults)
        world.check()


def test_the_doctor_finds_and_repairs(world: World) -> None:
    world.publish(paper("a"), paper("b", "a"), paper("c", "a"))
    world.check()
    with world.database.writing() as connection:
        connection.execute(sa.update(schema.year_sums).values(count=7))
        view = serving_view(connection).name
    del world.index.papers[view]["b"]
    world.index.papers[view]["c"] = replace(world.index.papers[view]["c"], profile=np.ones(6, np.float32))
    report = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=True))
    kinds = {(fault.paper_id, fault.kind) for fault in report.faults}
    assert {("a", "COUNT_MISMATCH"), ("b", "INDEX_MISSING"), ("c", "PROFILE_DIFFERS")} <= kinds
    world.check()
    clean = asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False))
    assert (clean.checked, clean.faults) == (3, [])
    assert asyncio.run(check_profiles(world.database, world.index, 2, 1, repair=False)).checked == 2


@pytest.mark.parametrize("sample", [0, 4])
def test_the_doctor_checks_page_by_page(world: World, sample: int) -> None:
    world.publish(*map(paper, "abcde"))
    world.check()
    whole = asyncio.run(check_profiles(world.database, world.index, sample, 7, repair=False))
    world.index.papers[world.index.serving].clear()
    last, checked, faulty = "", 0, list[str]()
    for _ in range(3):
        page = asyncio.run(check_profiles(world.database, world.index, sample, 7, False, last, page_size=2))
        assert page.total == whole.total == (sample or 5)
        checked, last = checked + page.checked, page.last
        faulty += [fault.paper_id for fault in page.faults]
        if not last:
            break
    assert not last
    assert checked == len(set(faulty)) == len(faulty) == whole.checked


def test_the_doctor_asks_for_no_span_that_was_gone_before_its_model_came(world: World) -> None:
    said = (MaskedContext("as in TARGETCIT", "x"),)
    world.publish(replace(paper("a"), masked_contexts=said), paper("a", revision=2))
    view = start_rebuild(world.database, world.encoders["other"], WEIGHTS)
    while filling.fill_step(world.database, world.ledger.encoders):
        pass
    world.project()
    assert try_switch(world.database, view.name) is not None
    world.publish(replace(paper("b"), masked_contexts=said))  # only this encodes the text with the new model
    world.project()
    assert asyncio.run(check_profiles(world.database, world.index, 0, 0, repair=False)).faults == []
