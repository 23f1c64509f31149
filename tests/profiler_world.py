"""A profiler with a real index behind it, and the calls of its tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.index.v1 import index_pb2, index_pb2_grpc
from citewell.profiler.server import ProfilerService
from citewell.profiler.settings import ProfilerSettings
from citewell.profiler.v1 import ledger_pb2 as pb
from citewell.profiler.v1 import ledger_pb2_grpc, profile_query_pb2, profile_query_pb2_grpc
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import Unavailable
from citewell.runtime.server import Service, ServiceProcess
from citewell.runtime.settings import ServiceSettings
from citewell.types.v1 import paper_pb2, publication_pb2


@contextlib.asynccontextmanager
async def serving(name: str, told: ServiceSettings, service: Service) -> AsyncIterator[int]:
    process = ServiceProcess(name, told, service)
    task = asyncio.create_task(process.run())
    bound = asyncio.create_task(process.bound.wait())
    await asyncio.wait({task, bound}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    try:
        yield process.port
    finally:
        process.stop()
        await asyncio.wait_for(task, 20)


class Profiler:
    """A profiler and an index with their data in one folder."""

    def __init__(self, profiler: int, index: int) -> None:
        self._channels = [open_channel(f"localhost:{port}") for port in (profiler, index)]
        self.ledger = ledger_pb2_grpc.LedgerServiceStub(self._channels[0])
        self.queries = profile_query_pb2_grpc.ProfileQueryServiceStub(self._channels[0])
        self.index = index_pb2_grpc.IndexServiceStub(self._channels[1])

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def apply(self, *events: publication_pb2.PublicationEvent, start: int = 0) -> list[pb.EventResult]:
        sourced = [
            pb.SourcedEvent(position=publication_pb2.LogPosition(log_id="log", offset=offset), event=event)
            for offset, event in enumerate(events, start)
        ]
        answer = await call(self.ledger.ApplyPublications, pb.ApplyPublicationsRequest(events=sourced))
        return list(answer.results)

    async def searchable(self, event_id: str) -> None:
        state = await call(self.ledger.GetEventState, pb.GetEventStateRequest(event_id=event_id, wait=True))
        assert state.searchable

    async def search(self, embedded: profile_query_pb2.EmbedQueryResponse) -> list[str]:
        request = index_pb2.SearchRequest(
            vector=embedded.query_vector, limit=10, index_view=embedded.view, model_hash=embedded.model_hash
        )
        return [found.paper.id for found in (await call(self.index.Search, request)).papers]


def settings(folder: Path, encoder: Path, index: str, **more: Any) -> ProfilerSettings:
    told: dict[str, Any] = {
        "ledger_url": f"sqlite:///{folder}/ledger.sqlite",
        "index_address": index,
        "encoder": str(encoder),
        "encoder_precision": "fp32",
        "encoder_cache": folder / "cache",
        "encoder_threads": 1,
        "progress_seconds": 0.05,
    }
    return ProfilerSettings(**(told | more))


@contextlib.asynccontextmanager
async def running(folder: Path, encoder: Path, **more: Any) -> AsyncIterator[Profiler]:
    index = IndexSettings(folder=folder / "index", min_free_megabytes=0)
    async with serving("index", index, IndexServer(index)) as index_port:
        told = settings(folder, encoder, f"localhost:{index_port}", **more)
        async with serving("profiler", told, ProfilerService(told)) as port:
            profiler = Profiler(port, index_port)
            try:
                await ready(profiler)
                yield profiler
            finally:
                await profiler.close()


async def ready(profiler: Profiler) -> None:
    """Waits until the ledger is open. Before that, calls are UNAVAILABLE, and our channels retry only a few times."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unavailable):
                await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
                return


async def call(method: Any, request: Any, seconds: float = 30) -> Any:
    with deadlines.within(seconds):
        return await invoke(method, request, "profiler", wait_for_ready=True)


def event(paper: str, *cites: str, revision: int = 1, **more: Any) -> publication_pb2.PublicationEvent:
    body = publication_pb2.Publication(
        paper_id=paper,
        revision=revision,
        title=f"a net of {paper}",
        published=paper_pb2.PartialDate(year=2020),
        masked_contexts=[publication_pb2.MaskedContext(text=f"as {paper} in TARGETCIT", cited_id=to) for to in cites],
        **more,
    )
    return publication_pb2.PublicationEvent(event_id=f"{paper}-{revision}", publication=body)


def query(**fields: str) -> profile_query_pb2.EmbedQueryRequest:
    return profile_query_pb2.EmbedQueryRequest(**fields)
