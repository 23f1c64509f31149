"""The index as the projector writes it, over gRPC."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import grpc
import numpy as np

from citewell.index.v1 import index_pb2, index_pb2_grpc
from citewell.profiler.index_views import Holdings
from citewell.profiler.ledger.database import chunks
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.views import View
from citewell.profiler.profiles import Vectors
from citewell.runtime.channels import invoke
from citewell.runtime.errors import MessageTooLarge
from citewell.scholarly.spans import Span
from citewell.types.messages import (
    date_from_message,
    date_to_message,
    paper_from_message,
    paper_to_message,
    terms_from_message,
    terms_to_message,
)

# More are not written faster, and hold up searches for longer. A message is kept below half of its size limit as well.
POINTS_PER_MESSAGE = 256
POINTS_READ_AT_ONCE = 1000
SCHEMA_VERSION = 1
WRITE_SECONDS = 60.0
READ_SECONDS = 30.0


Point = index_pb2.PaperPoint | index_pb2.SpanPoint


class IndexClient:
    """An `IndexWriter`."""

    def __init__(self, channel: grpc.aio.Channel, max_message_megabytes: int = 32) -> None:
        self._stub = index_pb2_grpc.IndexServiceStub(channel)
        self._most_bytes = (max_message_megabytes << 20) // 2

    async def holdings(self) -> Holdings:
        info = await invoke(self._stub.Info, index_pb2.InfoRequest(), "index.Info", at_most=READ_SECONDS)
        views = {view.name: view.stored_papers for view in info.views}
        if not any(view.serving for view in info.views):
            return Holdings(views)
        stats = await invoke(self._stub.Stats, index_pb2.StatsRequest(), "index.Stats", at_most=READ_SECONDS)
        papers = stats.papers + stats.hidden_papers
        return Holdings(views, stats.index_view, papers, stats.spans, stats.change_number)

    async def create_view(self, view: View) -> bool:
        request = index_pb2.CreateViewRequest(
            index_view=view.name,
            epoch=view.epoch,
            model_hash=view.model.hash,
            dimension=view.model.dimension,
            settings_hash=settings_hash(view),
        )
        answer = await invoke(self._stub.CreateView, request, "index.CreateView", at_most=WRITE_SECONDS)
        return bool(answer.created)

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        points: list[Point] = [
            *map(_paper_message, papers),
            *(_span_message(span, view.form.extractor) for span in spans),
        ]
        for some in _messages(points, self._most_bytes):
            request = index_pb2.UpsertRequest(
                index_view=view.name,
                epoch=view.epoch,
                papers=[point for point in some if isinstance(point, index_pb2.PaperPoint)],
                spans=[point for point in some if isinstance(point, index_pb2.SpanPoint)],
            )
            await invoke(self._stub.Upsert, request, "index.Upsert", at_most=WRITE_SECONDS)

    async def serve_view(self, name: str) -> None:
        request = index_pb2.ServeViewRequest(index_view=name)
        await invoke(self._stub.ServeView, request, "index.ServeView", at_most=WRITE_SECONDS)

    async def drop_view(self, name: str) -> None:
        request = index_pb2.DropViewRequest(index_view=name)
        await invoke(self._stub.DropView, request, "index.DropView", at_most=WRITE_SECONDS)

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        papers: list[PaperPoint] = []
        spans: list[SpanPoint] = []
        names = [*((True, key) for key in paper_ids), *((False, key) for key in span_keys)]
        for some in chunks(names, POINTS_READ_AT_ONCE):
            for response in await self._read(view, some):
                papers += map(_paper_point, response.papers)
                spans += map(_span_point, response.spans)
        return papers, spans

    async def _read(self, view: str, names: Sequence[tuple[bool, str]]) -> list[index_pb2.ReadPointsResponse]:
        request = index_pb2.ReadPointsRequest(
            index_view=view,
            paper_ids=[key for is_paper, key in names if is_paper],
            span_keys=[key for is_paper, key in names if not is_paper],
        )
        try:
            return [await invoke(self._stub.ReadPoints, request, "index.ReadPoints", at_most=WRITE_SECONDS)]
        except MessageTooLarge:
            if len(names) == 1:
                raise
            middle = len(names) // 2
            return await self._read(view, names[:middle]) + await self._read(view, names[middle:])


def _messages(points: Sequence[Point], most_bytes: int) -> Iterator[list[Point]]:
    """The points in runs that fit into one message each."""
    some: list[Point] = []
    size = 0
    for point in points:
        own = point.ByteSize()
        if some and (size + own > most_bytes or len(some) == POINTS_PER_MESSAGE):
            yield some
            some, size = [], 0
        some.append(point)
        size += own
    if some:
        yield some


def settings_hash(view: View) -> str:
    """Over what else, beside the model, decides what a view's points look like."""
    text = f"{view.weights.alpha!r} {view.weights.beta!r} {view.form.extractor} schema {SCHEMA_VERSION}"
    if view.form.words:  # a view of schema 0001 keeps the hash that it was created with
        text += f" words {view.form.words.key} {view.form.words.max_terms}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _paper_message(point: PaperPoint) -> index_pb2.PaperPoint:
    return index_pb2.PaperPoint(
        paper=paper_to_message(point.paper),
        profile=_bytes(point.profile),
        content=_bytes(point.content),
        version=point.version,
        hidden=point.hidden,
        terms=terms_to_message(point.terms),
        length=point.length,
    )


def _span_message(point: SpanPoint, extractor: str) -> index_pb2.SpanPoint:
    return index_pb2.SpanPoint(
        key=point.key,
        citing_id=point.citing_id,
        cited_id=point.cited_id,
        text=point.text,
        vector=_bytes(point.vector),
        published=date_to_message(point.published),
        revision=point.revision,
        version=point.version,
        hidden=point.hidden,
        extractor_hash=extractor,
        terms=terms_to_message(point.terms),
        span_offset=point.span.offset,
        span_length=point.span.length,
        span_terms=terms_to_message(point.span_terms),
    )


def _paper_point(message: index_pb2.PaperPoint) -> PaperPoint:
    return PaperPoint(
        paper_from_message(message.paper),
        _vector(message.profile),
        _vector(message.content),
        message.version,
        message.hidden,
        terms_from_message(message.terms),
        message.length,
    )


def _span_point(message: index_pb2.SpanPoint) -> SpanPoint:
    return SpanPoint(
        message.key,
        message.citing_id,
        message.cited_id,
        message.text,
        _vector(message.vector),
        date_from_message(message.published, "published"),
        message.revision,
        message.version,
        message.hidden,
        terms_from_message(message.terms),
        Span(message.span_offset, message.span_length),
        terms_from_message(message.span_terms),
    )


def _bytes(vector: Vectors) -> bytes:
    return vector.astype("<f4", copy=False).tobytes()


def _vector(values: bytes) -> Vectors:
    return np.frombuffer(values, "<f4")
