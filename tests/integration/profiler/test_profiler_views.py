"""Views of the profiler: rebuilt, switched, dropped, adopted, and left alone by a process that does not project."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from citewell.profiler.server import ProfilerService
from citewell.profiler.v1 import ledger_pb2 as pb
from citewell.profiler.v1 import profile_query_pb2
from citewell.runtime.errors import FailedPrecondition, NotFound
from citewell.runtime.server import ServiceProcess
from tests.profiler_world import Profiler, call, event, query, ready, running, settings
from tests.servers.processes import free_ports
from tests.tiny_models import write_tiny_encoder


@contextlib.asynccontextmanager
async def query_only(folder: Path, encoder: Path, **more: Any) -> AsyncIterator[Profiler]:
    """A second profiler process on the same ledger, which does not project."""
    (port,) = free_ports(1)
    told = settings(folder, encoder, "localhost:1", port=port, project=False, **more)
    named = {f"CITEWELL_PROFILER__{name.upper()}": str(getattr(told, name)) for name in told.model_fields_set}
    with (folder / "query_only.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "citewell.profiler", env={**os.environ, **named}, stdout=log, stderr=log
        )
    other = Profiler(port, port)
    try:
        yield other
    finally:
        await other.close()
        process.terminate()
        await process.wait()


async def test_a_rebuild_takes_over_and_the_old_view_goes(folder: Path, encoder: Path) -> None:
    other = write_tiny_encoder(folder / "other", pooling="cls")
    async with running(folder, encoder) as profiler:
        await profiler.apply(event("a"), event("b", "a"))
        await profiler.searchable("b-1")
        before = await call(profiler.queries.EmbedQuery, query(title="a net"))
        spec = pb.ViewSpec(encoder=str(other), beta=0.5)
        started = await call(profiler.ledger.StartRebuild, pb.StartRebuildRequest(spec=spec, request_id="r"))
        again = await call(profiler.ledger.StartRebuild, pb.StartRebuildRequest(spec=spec, request_id="r"))
        assert again.view.name == started.view.name
        await profiler.apply(event("c", "a"), start=2)
        with pytest.raises(FailedPrecondition, match="is served"):
            await call(profiler.ledger.DropView, pb.DropViewRequest(view=before.view))
        switched = await call(profiler.ledger.SwitchView, pb.SwitchViewRequest(view=started.view.name))
        assert (switched.previous_view, switched.view.beta, switched.view.alpha) == (
            before.view,
            0.5,
            started.view.alpha,
        )
        after = await call(profiler.queries.EmbedQuery, query(title="a net"))
        assert (after.view, after.model_hash) != (before.view, before.model_hash)
        await profiler.searchable("c-1")
        assert set(await profiler.search(after)) == {"a", "b", "c"}
        await call(profiler.ledger.DropView, pb.DropViewRequest(view=before.view))
        views = (await call(profiler.ledger.ListViews, pb.ListViewsRequest())).views
        assert [(view.name, view.serving) for view in views] == [(after.view, True)]
        with pytest.raises(NotFound):
            await call(profiler.ledger.GetRebuild, pb.GetRebuildRequest(view=before.view))
        checked = await call(profiler.ledger.CheckProfiles, pb.CheckProfilesRequest())
        assert (checked.checked, list(checked.faults)) == (3, [])
        first = await call(profiler.ledger.CheckProfiles, pb.CheckProfilesRequest(page_size=2))
        second = await call(
            profiler.ledger.CheckProfiles, pb.CheckProfilesRequest(page_size=2, page_token=first.next_page_token)
        )
        assert [page.checked for page in (first, second)] == [2, 1]
        assert (second.next_page_token, second.total) == ("", 3)
    told = settings(folder, encoder, "localhost:1")
    with pytest.raises(FailedPrecondition, match=f"{other}.*{encoder}"):
        await asyncio.wait_for(ServiceProcess("profiler", told, ProfilerService(told)).run(), 60)


async def test_other_weights_in_the_settings_take_over_by_themselves(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        await profiler.apply(event("a"), event("b", "a"))
        await profiler.searchable("b-1")
    async with running(folder, encoder, alpha=0.1) as profiler:
        (new,) = [
            view for view in (await call(profiler.ledger.ListViews, pb.ListViewsRequest())).views if view.alpha == 0.1
        ]
        await call(profiler.ledger.SwitchView, pb.SwitchViewRequest(view=new.name))
        assert (await call(profiler.queries.Info, profile_query_pb2.InfoRequest())).alpha == 0.1


async def test_a_profiler_that_does_not_project_changes_no_view(folder: Path, encoder: Path) -> None:
    # `other` does not project, so it waits until `profiler` has opened the ledger.
    async with query_only(folder, encoder, alpha=0.1) as other, running(folder, encoder) as profiler:
        await profiler.apply(event("a"), event("b", "a"))
        await profiler.searchable("b-1")
        await ready(other)
        answer = await call(other.queries.EmbedQuery, query(title="a net"))
        assert set(await profiler.search(answer)) == {"a", "b"}
        info = await call(other.queries.Info, profile_query_pb2.InfoRequest())
        (view,) = (await call(profiler.ledger.ListViews, pb.ListViewsRequest())).views
        assert (answer.view, info.alpha) == (view.name, view.alpha)
        assert view.alpha != 0.1
    assert b"other weights than the settings" in (folder / "query_only.log").read_bytes()


async def test_a_restored_ledger_is_adopted(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        await profiler.apply(event("a"), event("b", "a"))
        await profiler.searchable("b-1")
        before = await call(profiler.queries.EmbedQuery, query(title="a net"))
        adopted = await call(profiler.ledger.AdoptRestoredLedger, pb.AdoptRestoredLedgerRequest(request_id="r"))
        assert adopted.epoch != before.epoch
        assert [position.offset for position in adopted.applied] == [2]
        (new,) = [
            view
            for view in (await call(profiler.ledger.ListViews, pb.ListViewsRequest())).views
            if view.epoch == adopted.epoch
        ]
        await call(profiler.ledger.SwitchView, pb.SwitchViewRequest(view=new.name))
        after = await call(profiler.queries.EmbedQuery, query(title="a net"))
        assert set(await profiler.search(after)) == {"a", "b"}
