"""gRPC handlers of the index: messages to domain objects and back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc

from citewell import __version__
from citewell.index.index import Index
from citewell.index.messages import (
    evidence_search_from_message,
    evidence_to_message,
    found_span_to_message,
    found_to_message,
    paper_point_from_message,
    paper_point_to_message,
    search_from_message,
    span_point_from_message,
    span_point_to_message,
    span_search_from_message,
)
from citewell.index.points import SCHEMA_VERSION
from citewell.index.second_phase_model import configured_model
from citewell.index.settings import IndexSettings
from citewell.index.store import Kind
from citewell.index.stores import configured_store
from citewell.index.v1 import index_pb2 as pb
from citewell.index.v1 import index_pb2_grpc
from citewell.index.views import View
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import DeadlineExceeded
from citewell.runtime.health import Check
from citewell.types.messages import filter_from_message, paper_to_message
from citewell.types.v1 import paper_pb2


class IndexServer(index_pb2_grpc.IndexServiceServicer):
    """The index service. Calls that come while the store opens wait for it within their deadline."""

    grpc_services = ("citewell.index.v1.IndexService",)

    def __init__(self, settings: IndexSettings) -> None:
        self._store = configured_store(settings)
        self._second_phase = configured_model(settings.second_phase)
        self._index = Index(
            self._store,
            search_threads=settings.search_threads,
            feed_seconds=settings.feed_seconds,
            second_phase=self._second_phase,
        )
        self._open = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> None:
        index_pb2_grpc.add_IndexServiceServicer_to_server(self, server)

    async def start(self) -> None:
        await self._store.open()
        self._open.set()

    async def check(self) -> None:
        """A started index is always ready; a store that is full or lost shows in answers and metrics."""

    def dependencies(self) -> Mapping[str, Check]:
        return {"store": self._index.check}

    async def stop(self) -> None:
        await self._index.close()
        await self._store.close()

    async def _opened(self) -> Index:
        if not self._open.is_set():
            try:
                await asyncio.wait_for(self._open.wait(), budget("opening the store"))
            except TimeoutError:
                raise DeadlineExceeded("the store was still being opened") from None
        return self._index

    async def Search(self, request: pb.SearchRequest, context: Any) -> pb.SearchResponse:
        index = await self._opened()
        found = await index.search(search_from_message(request))
        groups = found.second.groups if found.second else ()
        return pb.SearchResponse(
            papers=[found_to_message(paper, rank, request.view, groups) for rank, paper in enumerate(found.papers, 1)],
            exact=found.exact,
            index_view=found.view,
            engine=found.engine,
            second_phase_hash=found.second.hash if found.second else "",
        )

    async def SearchEvidence(self, request: pb.SearchEvidenceRequest, context: Any) -> pb.SearchEvidenceResponse:
        index = await self._opened()
        found = await index.search_evidence(evidence_search_from_message(request))
        return pb.SearchEvidenceResponse(
            papers=[
                pb.PaperEvidence(cited_id=cited_id, evidence=map(evidence_to_message, pieces))
                for cited_id, pieces in found.items()
            ]
        )

    async def SearchSpans(self, request: pb.SearchSpansRequest, context: Any) -> pb.SearchSpansResponse:
        index = await self._opened()
        found = await index.search_spans(span_search_from_message(request))
        return pb.SearchSpansResponse(
            spans=map(found_span_to_message, found.spans), index_view=found.view, mean_span_length=found.mean_length
        )

    async def Upsert(self, request: pb.UpsertRequest, context: Any) -> pb.UpsertResponse:
        index = await self._opened()
        papers = [
            paper_point_from_message(message, f"papers[{number}]") for number, message in enumerate(request.papers)
        ]
        spans = [span_point_from_message(message, f"spans[{number}]") for number, message in enumerate(request.spans)]
        return pb.UpsertResponse(stale=await index.upsert(request.index_view, request.epoch, papers, spans))

    async def GetPapers(self, request: pb.GetPapersRequest, context: Any) -> pb.GetPapersResponse:
        index = await self._opened()
        papers, missing = await index.papers(request.ids)
        full = request.view == paper_pb2.PAPER_VIEW_FULL
        return pb.GetPapersResponse(
            papers=[paper_to_message(paper, full=full) for paper in papers], missing_ids=missing
        )

    async def ListPapers(self, request: pb.ListPapersRequest, context: Any) -> pb.ListPapersResponse:
        index = await self._opened()
        papers, token = await index.list_papers(
            request.page_size, request.page_token, filter_from_message(request.filter)
        )
        full = request.view == paper_pb2.PAPER_VIEW_FULL
        return pb.ListPapersResponse(
            papers=[paper_to_message(paper, full=full) for paper in papers], next_page_token=token
        )

    async def ReadPoints(self, request: pb.ReadPointsRequest, context: Any) -> pb.ReadPointsResponse:
        index = await self._opened()
        papers, spans = await index.read_points(request.index_view, request.paper_ids, request.span_keys)
        return pb.ReadPointsResponse(
            papers=[paper_point_to_message(paper) for paper in papers],
            spans=[span_point_to_message(span) for span in spans],
        )

    async def CreateView(self, request: pb.CreateViewRequest, context: Any) -> pb.CreateViewResponse:
        index = await self._opened()
        view = View(request.index_view, request.epoch, request.model_hash, request.dimension, request.settings_hash)
        return pb.CreateViewResponse(created=await index.create_view(view))

    async def ServeView(self, request: pb.ServeViewRequest, context: Any) -> pb.ServeViewResponse:
        index = await self._opened()
        return pb.ServeViewResponse(previous_view=await index.serve_view(request.index_view))

    async def DropView(self, request: pb.DropViewRequest, context: Any) -> pb.DropViewResponse:
        index = await self._opened()
        await index.drop_view(request.index_view)
        return pb.DropViewResponse()

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        index = await self._opened()
        stats = await index.stats()
        return pb.StatsResponse(
            papers=stats.papers,
            hidden_papers=stats.hidden_papers,
            spans=stats.spans,
            index_view=stats.view.name,
            epoch=stats.view.epoch,
            model_hash=stats.view.model_hash,
            change_number=stats.change_number,
            disk_bytes=stats.disk_bytes,
        )

    async def Info(self, request: pb.InfoRequest, context: Any) -> pb.InfoResponse:
        index = await self._opened()
        registry = await index.registry()
        stored = {name: await index.stored(view) for name, view in registry.views.items()}
        return pb.InfoResponse(
            version=__version__,
            engine=self._store.engine,
            schema_version=SCHEMA_VERSION,
            second_phase_hash=self._second_phase.hash if self._second_phase else "",
            views=[
                pb.IndexView(
                    name=view.name,
                    epoch=view.epoch,
                    model_hash=view.model_hash,
                    dimension=view.dimension,
                    settings_hash=view.settings_hash,
                    serving=view.name == registry.serving,
                    stored_papers=stored[view.name][Kind.PAPERS],
                    stored_spans=stored[view.name][Kind.SPANS],
                )
                for view in registry.views.values()
            ],
        )
