"""gRPC handlers of the index: messages to domain objects and back."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np

from citewell import __version__
from citewell.index.index import EvidenceSearch, Index, Search
from citewell.index.points import CONTENT, LEXICAL, PROFILE, SCHEMA_VERSION, PaperPoint, SpanPoint, Sparse, Vector
from citewell.index.settings import IndexSettings
from citewell.index.stores import configured_store
from citewell.index.v1 import index_pb2 as pb
from citewell.index.v1 import index_pb2_grpc
from citewell.index.views import View
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import DeadlineExceeded, InvalidField
from citewell.types.messages import (
    date_from_message,
    date_to_message,
    filter_from_message,
    paper_from_message,
    paper_to_message,
)
from citewell.types.v1 import paper_pb2

_FIELDS: dict[int, str] = {
    pb.SEARCH_FIELD_UNSPECIFIED: PROFILE,
    pb.SEARCH_FIELD_PROFILE: PROFILE,
    pb.SEARCH_FIELD_CONTENT: CONTENT,
    pb.SEARCH_FIELD_LEXICAL: LEXICAL,
}


class IndexServer(index_pb2_grpc.IndexServiceServicer):
    """The index service. Calls that come while the store opens wait for it within their deadline."""

    grpc_services = ("citewell.index.v1.IndexService",)

    def __init__(self, settings: IndexSettings) -> None:
        self._store = configured_store(settings)
        self._index = Index(self._store)
        self._open = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> None:
        index_pb2_grpc.add_IndexServiceServicer_to_server(self, server)

    async def start(self) -> None:
        await self._store.open()
        self._open.set()

    async def check(self) -> None:
        await self._index.check()

    async def stop(self) -> None:
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
        found = await index.search(
            Search(
                limit=request.limit,
                vector=_vector(request.vector),
                sparse=_sparse(request.sparse),
                searched=_field(request.field),
                filter=filter_from_message(request.filter),
                index_view=request.index_view,
                model_hash=request.model_hash,
                exact=request.exact,
            )
        )
        full = request.view == paper_pb2.PAPER_VIEW_FULL
        return pb.SearchResponse(
            papers=[
                pb.ScoredPaper(paper=paper_to_message(hit.paper, full=full), score=hit.score, rank=rank)
                for rank, hit in enumerate(found.papers, 1)
            ],
            exact=found.exact,
            index_view=found.view,
            engine=found.engine,
        )

    async def SearchEvidence(self, request: pb.SearchEvidenceRequest, context: Any) -> pb.SearchEvidenceResponse:
        index = await self._opened()
        found = await index.search_evidence(
            EvidenceSearch(
                cited_ids=request.cited_ids,
                limit=request.limit_per_paper,
                vector=_vector(request.vector),
                published_before=date_from_message(request.published_before, "published_before"),
                excluded_citing_ids=request.excluded_citing_ids,
                index_view=request.index_view,
            )
        )
        return pb.SearchEvidenceResponse(
            papers=[
                pb.PaperEvidence(
                    cited_id=cited_id,
                    evidence=[
                        pb.Evidence(
                            citing_id=evidence.span.citing_id,
                            cited_id=evidence.span.cited_id,
                            text=evidence.span.text,
                            published=date_to_message(evidence.span.published),
                            score=evidence.score,
                        )
                        for evidence in pieces
                    ],
                )
                for cited_id, pieces in found.items()
            ]
        )

    async def Upsert(self, request: pb.UpsertRequest, context: Any) -> pb.UpsertResponse:
        index = await self._opened()
        papers = [_paper_point(message, f"papers[{number}]") for number, message in enumerate(request.papers)]
        spans = [_span_point(message, f"spans[{number}]") for number, message in enumerate(request.spans)]
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
            papers=[_paper_point_message(paper) for paper in papers],
            spans=[_span_point_message(span) for span in spans],
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
        return pb.InfoResponse(
            version=__version__,
            engine=self._store.engine,
            schema_version=SCHEMA_VERSION,
            views=[
                pb.IndexView(
                    name=view.name,
                    epoch=view.epoch,
                    model_hash=view.model_hash,
                    dimension=view.dimension,
                    settings_hash=view.settings_hash,
                    serving=view.name == registry.serving,
                )
                for view in registry.views.values()
            ],
        )


def _field(field: int) -> str:
    try:
        return _FIELDS[field]
    except KeyError:
        raise InvalidField("field", field, "a SearchField") from None


def _vector(numbers: Any) -> Vector:
    return np.array(numbers, dtype=np.float32)


def _point_vector(values: bytes, field: str) -> Vector:
    if len(values) % 4:
        raise InvalidField(field, f"{len(values)} bytes", "float32 numbers of 4 bytes", reason="WRONG_DIMENSION")
    return np.frombuffer(values, "<f4")


def _bytes(vector: Vector) -> bytes:
    return vector.astype("<f4", copy=False).tobytes()


def _sparse(message: pb.SparseVector) -> Sparse:
    return Sparse(tuple(message.indices), tuple(message.values))


def _paper_point(message: pb.PaperPoint, field: str) -> PaperPoint:
    return PaperPoint(
        paper=paper_from_message(message.paper, f"{field}.paper"),
        version=message.version,
        profile=_point_vector(message.profile, f"{field}.profile"),
        content=_point_vector(message.content, f"{field}.content"),
        lexical=_sparse(message.lexical),
        hidden=message.hidden,
    )


def _paper_point_message(point: PaperPoint) -> pb.PaperPoint:
    return pb.PaperPoint(
        paper=paper_to_message(point.paper),
        profile=_bytes(point.profile),
        content=_bytes(point.content),
        lexical=pb.SparseVector(indices=point.lexical.indices, values=point.lexical.values),
        version=point.version,
        hidden=point.hidden,
    )


def _span_point(message: pb.SpanPoint, field: str) -> SpanPoint:
    return SpanPoint(
        key=message.key,
        citing_id=message.citing_id,
        cited_id=message.cited_id,
        text=message.text,
        version=message.version,
        vector=_point_vector(message.vector, f"{field}.vector"),
        published=date_from_message(message.published, f"{field}.published"),
        revision=message.revision,
        hidden=message.hidden,
        extractor_hash=message.extractor_hash,
    )


def _span_point_message(span: SpanPoint) -> pb.SpanPoint:
    return pb.SpanPoint(
        key=span.key,
        citing_id=span.citing_id,
        cited_id=span.cited_id,
        text=span.text,
        vector=_bytes(span.vector),
        published=date_to_message(span.published),
        revision=span.revision,
        version=span.version,
        hidden=span.hidden,
        extractor_hash=span.extractor_hash,
    )
