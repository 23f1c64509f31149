"""Views, restarts and the change feed: Index behaves the same with every store."""

from dataclasses import replace

import pytest

from citewell.index.index import Index
from citewell.index.points import point_id
from citewell.index.queries import EvidenceSearch
from citewell.index.store import Changes, Kind
from citewell.index.views import View
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound
from tests.store_world import EPOCH, LOCAL_MODE, VIEW, Adapter, ids, paper, span, vector, write

pytestmark = LOCAL_MODE


async def test_a_view_is_created_once_and_never_changed(index: Index) -> None:
    assert await index.create_view(VIEW) is False
    for changes in ({"epoch": "second life"}, {"model_hash": "encoder-b"}, {"dimension": 8}, {"settings_hash": "x"}):
        [(name, value)] = changes.items()
        with pytest.raises(FailedPrecondition, match=f"{name} {getattr(VIEW, name)!r}, not {value!r}"):
            await index.create_view(replace(VIEW, **changes))  # type: ignore[arg-type]
    for wrong in ("", "../up", "Main", "a" * 65):
        with pytest.raises(InvalidField, match="index_view"):
            replace(VIEW, name=wrong)


async def test_a_second_view_is_filled_beside_the_served_one_and_then_served(stocked: Index, adapter: Adapter) -> None:
    other = View("rebuilt", EPOCH, "encoder-b", 8)
    assert await stocked.create_view(other) is True
    short = vector(0)[:8]
    await write(stocked, replace(paper(0), profile=short, content=short), view="rebuilt")
    assert len(await ids(stocked, vector(0))) == 120
    assert await ids(stocked, short, index_view="rebuilt") == ["paper-000"]
    assert await stocked.serve_view("rebuilt") == "main"
    assert await ids(stocked, short, model_hash="encoder-b") == ["paper-000"]
    with pytest.raises(FailedPrecondition, match="'rebuilt' is served"):
        await stocked.drop_view("rebuilt")
    await stocked.drop_view("main")
    await stocked.drop_view("main")
    with pytest.raises(NotFound, match="'main'"):
        await ids(stocked, vector(0), index_view="main")
    reopened = await adapter.restart()
    registry = await reopened.registry()
    assert (list(registry.views.values()), registry.serving) == ([other], "rebuilt")
    assert await ids(reopened, short) == ["paper-000"]


async def test_nothing_is_served_before_a_view_is(adapter: Adapter) -> None:
    index = await adapter.open()
    with pytest.raises(FailedPrecondition, match="no view is served"):
        await ids(index, vector(0))
    await index.check()


async def test_a_restart_keeps_everything(stocked: Index, adapter: Adapter) -> None:
    query, search = vector(5), EvidenceSearch(["paper-004"], 10, vector(6))
    before = (await ids(stocked, query), await stocked.search_evidence(search))
    stats = await stocked.stats()
    again = await adapter.restart()
    after = (await ids(again, query), await again.search_evidence(search))
    assert after[0] == before[0]
    [was, now] = (said["paper-004"] for said in (before[1], after[1]))
    assert [piece.span.key for piece in now] == [piece.span.key for piece in was]
    assert [piece.score for piece in now] == pytest.approx([piece.score for piece in was], abs=1e-6)
    assert replace(await again.stats(), disk_bytes=0) == replace(stats, disk_bytes=0)


async def test_the_change_number_grows_with_every_write_that_changed_something(
    stocked: Index, adapter: Adapter
) -> None:
    async def number() -> int:
        return (await stocked.stats()).change_number

    before = await number()
    await write(stocked, paper(0, version=2))
    between = await number()
    await write(stocked, span(20, 0, version=2))
    assert before < between < await number()


async def test_the_feed_names_what_was_written_since(stocked: Index, adapter: Adapter) -> None:
    papers = adapter.store.points(VIEW, Kind.PAPERS)
    seen = await papers.changes(0)
    assert seen.ids == {point_id(f"paper-{number:03}") for number in range(120)}
    assert await papers.changes(seen.number) == Changes(seen.number, frozenset())
    await write(stocked, paper(1, version=2), paper(2), paper(3, version=2, hidden=True))
    news = await papers.changes(seen.number)
    assert news.ids >= {point_id("paper-001"), point_id("paper-003")}
    assert news.ids <= {point_id(f"paper-00{number}") for number in (1, 2, 3)}
    assert news.number > seen.number
