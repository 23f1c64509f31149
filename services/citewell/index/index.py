"""What the index service does: searches, evidence, conditional writes, views. Any Store will do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from citewell.index import views
from citewell.index.filters import VISIBLE, Between, paper_conditions, span_conditions
from citewell.index.paging import from_token, to_token
from citewell.index.points import (
    CONTENT,
    LEXICAL,
    NO_TERMS,
    NO_VECTOR,
    PROFILE,
    SPAN,
    PaperPoint,
    Point,
    SpanPoint,
    Sparse,
    Vector,
    newest,
    paper_from_point,
    paper_of,
    paper_to_point,
    point_id,
    span_from_point,
    span_to_point,
    unit,
)
from citewell.index.ranking import ranked
from citewell.index.store import Kind, Nearest, Store
from citewell.index.views import Registry, View
from citewell.runtime import faults, telemetry
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.limits import MAX_EVIDENCE
from citewell.scholarly.papers import Paper, SearchFilter

MAX_LIMIT = 3000
MAX_CITED = 1000
MAX_POINTS = 5000
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_IDS = 5000
EVERYTHING = SearchFilter()

_HIDDEN = Between("hidden", least=1)

_durations = telemetry.meter.create_histogram(
    "citewell_index_search.duration", unit="s", description="Time of a search's stages"
)
_written = telemetry.meter.create_counter("citewell_index_upserted", description="Points sent to be written")
_stale = telemetry.meter.create_counter("citewell_index_stale", description="Points the store held newer")
_points = telemetry.meter.create_gauge("citewell_index_points", description="Points of the serving view, hidden too")


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A search as asked. An empty view is the serving one; an empty model hash is not checked."""

    limit: int
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    sparse: Sparse = NO_TERMS
    searched: str = PROFILE
    filter: SearchFilter = EVERYTHING
    index_view: str = ""
    model_hash: str = ""
    exact: bool = False


@dataclass(frozen=True, slots=True)
class FoundPaper:
    paper: Paper
    score: float


@dataclass(frozen=True, slots=True)
class Found:
    """A ranking, and who made it."""

    papers: list[FoundPaper]
    view: str
    engine: str
    exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceSearch:
    """Which words about these papers are nearest to the vector; the newest without one."""

    cited_ids: Sequence[str]
    limit: int
    vector: Vector = field(default_factory=lambda: NO_VECTOR)
    published_before: PartialDate = UNKNOWN_DATE
    excluded_citing_ids: Sequence[str] = ()
    index_view: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    span: SpanPoint
    score: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What the serving view holds."""

    view: View
    papers: int
    hidden_papers: int
    spans: int
    change_number: int
    disk_bytes: int


class Index:
    """The serving view, over any store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changing_views = asyncio.Lock()

    async def search(self, search: Search) -> Found:
        """The nearest papers that meet the filter (eq. 5), ties by id."""
        require_range("limit", search.limit, 1, MAX_LIMIT)
        view = (await self._store.registry()).resolve(search.index_view)
        views.require_model(view, search.model_hash)
        vector: Vector | Sparse
        if search.searched == LEXICAL:
            vector = search.sparse
            require_sparse("sparse", vector)
        else:
            require_vector("vector", search.vector, view.dimension)
            require_direction("vector", search.vector)
            vector = unit(search.vector)
        budget("the search")
        started = time.monotonic()
        nearest = Nearest(search.searched, vector, search.limit, paper_conditions(search.filter), search.exact)
        answers = await ranked(self._store.points(view, Kind.PAPERS), [nearest])
        _durations.record(time.monotonic() - started, {"stage": "papers", "engine": answers.engine})
        found = [FoundPaper(paper_of(hit.point.payload), hit.score) for hit in answers.hits[0]]
        return Found(found, view.name, answers.engine, answers.exact)

    async def search_evidence(self, search: EvidenceSearch) -> dict[str, list[Evidence]]:
        """For each cited paper, in the order asked, its best spans."""
        require_range("limit_per_paper", search.limit, 1, MAX_EVIDENCE)
        require_range("cited_ids", len(search.cited_ids), 1, MAX_CITED, "ids")
        view = (await self._store.registry()).resolve(search.index_view)
        vector = None
        if search.vector.size:
            require_vector("vector", search.vector, view.dimension)
            require_direction("vector", search.vector)
            vector = unit(search.vector)
        budget("the evidence search")
        cited_ids = list(dict.fromkeys(search.cited_ids))
        queries = [
            Nearest(
                SPAN,
                vector,
                search.limit,
                span_conditions(cited_id, search.published_before, search.excluded_citing_ids),
            )
            for cited_id in cited_ids
        ]
        started = time.monotonic()
        answers = await ranked(self._store.points(view, Kind.SPANS), queries)
        _durations.record(time.monotonic() - started, {"stage": "evidence", "engine": answers.engine})
        return {
            cited_id: [Evidence(span_from_point(hit.point), hit.score if search.vector.size else 0.0) for hit in hits]
            for cited_id, hits in zip(cited_ids, answers.hits, strict=True)
        }

    async def upsert(
        self, index_view: str, epoch: str, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]
    ) -> int:
        """Writes what is newer than the store; how many points were older. Nothing is written before all is checked."""
        require_range("papers", len(papers) + len(spans), 0, MAX_POINTS, "papers and spans")
        view = (await self._store.registry()).resolve(index_view)
        views.require_epoch(view, epoch)
        for number, paper in enumerate(papers):
            _require_paper(f"papers[{number}]", paper, view.dimension)
        for number, span in enumerate(spans):
            _require_span(f"spans[{number}]", span, view.dimension)
        stale = 0
        # Spans first: a paper's new profile never speaks of words that are not there yet.
        for kind, points in (
            (Kind.SPANS, newest(map(span_to_point, spans))),
            (Kind.PAPERS, newest(map(paper_to_point, papers))),
        ):
            if points:
                stale += await self._store.points(view, kind).upsert(points)
                _written.add(len(points), {"kind": kind.value})
        _stale.add(stale)
        faults.point("after-index-write")
        return stale

    async def papers(self, ids: Sequence[str]) -> tuple[list[Paper], list[str]]:
        """The papers in the order asked, and the ids nothing is shown for: unknown ones and retracted ones."""
        require_range("ids", len(ids), 0, MAX_IDS, "ids")
        view = (await self._store.registry()).resolve("")
        points = await self._read(view, Kind.PAPERS, ids)
        shown = {key: paper_of(point.payload) for key, point in points.items() if not point.payload["hidden"]}
        wanted = list(dict.fromkeys(ids))
        return [shown[id_] for id_ in wanted if id_ in shown], [id_ for id_ in wanted if id_ not in shown]

    async def list_papers(
        self, page_size: int, page_token: str, search_filter: SearchFilter
    ) -> tuple[list[Paper], str]:
        """A page of papers in a fixed order, and the token of the next; empty at the end."""
        require_range("page_size", page_size, 0, MAX_PAGE)
        view = (await self._store.registry()).resolve("")
        conditions = (VISIBLE, *paper_conditions(search_filter))
        start = from_token(page_token, view, search_filter) if page_token else None
        page = await self._store.points(view, Kind.PAPERS).page(start, page_size or DEFAULT_PAGE, conditions)
        token = to_token(page.next_id, view, search_filter) if page.next_id else ""
        return [paper_of(point.payload) for point in page.points], token

    async def read_points(
        self, index_view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        """The stored points that exist, hidden ones too, vectors at unit length."""
        require_range("paper_ids", len(paper_ids) + len(span_keys), 0, MAX_IDS, "paper ids and span keys")
        view = (await self._store.registry()).resolve(index_view)
        papers = await self._read(view, Kind.PAPERS, paper_ids, (PROFILE, CONTENT, LEXICAL))
        spans = await self._read(view, Kind.SPANS, span_keys, (SPAN,))
        return (
            [paper_from_point(papers[key]) for key in sorted(papers)],
            [span_from_point(spans[key]) for key in sorted(spans)],
        )

    async def create_view(self, view: View) -> bool:
        """Whether it was created; False when it was there with the same properties."""
        async with self._changing_views:
            known = (await self._store.registry()).views
            if view.name in known:
                views.require_same(known[view.name], view)
                return False
            await self._store.create(view)
            return True

    async def serve_view(self, name: str) -> str:
        """Serves the view from now on; the name of the one served before."""
        async with self._changing_views:
            registry = await self._store.registry()
            view = registry.resolve(_named(name))
            if view.name != registry.serving:
                await self._store.serve(view.name)
            return registry.serving

    async def drop_view(self, name: str) -> None:
        async with self._changing_views:
            registry = await self._store.registry()
            if _named(name) == registry.serving:
                raise FailedPrecondition(f"view {name!r} is served; serve another one first", reason="VIEW_SERVED")
            if name in registry.views:  # dropping is safe to repeat
                await self._store.drop(name)

    async def stats(self) -> Stats:
        view = (await self._store.registry()).resolve("")
        papers, spans = (self._store.points(view, kind) for kind in (Kind.PAPERS, Kind.SPANS))
        return Stats(
            view=view,
            papers=await papers.count((VISIBLE,)),
            hidden_papers=await papers.count((_HIDDEN,)),
            spans=await spans.count((VISIBLE,)),
            change_number=await papers.change_number() + await spans.change_number(),
            disk_bytes=await self._store.disk_bytes(view),
        )

    async def registry(self) -> Registry:
        return await self._store.registry()

    async def check(self) -> None:
        """Raises when the store could not answer now."""
        await self._store.check()
        registry = await self._store.registry()
        if registry.serving:
            view = registry.resolve("")
            for kind in Kind:
                _points.set(await self._store.points(view, kind).count(), {"kind": kind.value})

    async def _read(self, view: View, kind: Kind, keys: Sequence[str], vectors: Sequence[str] = ()) -> dict[str, Point]:
        if not keys:
            return {}
        points = await self._store.points(view, kind).read({point_id(key) for key in keys}, vectors)
        return {point.key: point for point in points}


def _named(name: str) -> str:
    if not name:
        raise InvalidField("index_view", name, "the name of a view")
    return name


def require_range(field: str, value: int, least: int, most: int, unit_name: str = "") -> None:
    if not least <= value <= most:
        raise InvalidField(field, f"{value} {unit_name}".strip(), f"{least} to {most}", reason="OUT_OF_RANGE")


def require_vector(field: str, vector: Vector, dimension: int) -> None:
    if vector.size != dimension:
        raise InvalidField(field, f"{vector.size} numbers", f"{dimension} numbers", reason="WRONG_DIMENSION")
    if not np.isfinite(vector).all():
        raise InvalidField(field, "NaN or infinity among the numbers", "finite numbers", reason="NOT_FINITE")


def require_direction(field: str, vector: Vector) -> None:
    if not vector.any():
        raise InvalidField(field, "all zero", "a vector with a direction", reason="ZERO_VECTOR")


def require_sparse(field: str, sparse: Sparse) -> None:
    if not sparse.indices:
        raise InvalidField(field, "empty", "at least one term")
    if len(sparse.indices) != len(sparse.values) or len(set(sparse.indices)) != len(sparse.indices):
        raise InvalidField(field, f"{len(sparse.indices)} indices", "distinct indices, as many as values")
    if not np.isfinite(sparse.values).all():
        raise InvalidField(field, "NaN or infinity among the values", "finite numbers", reason="NOT_FINITE")


def _require_paper(field: str, point: PaperPoint, dimension: int) -> None:
    if not point.paper.id:
        raise InvalidField(f"{field}.paper.id", "", "an id")
    if point.version < 1:
        raise InvalidField(f"{field}.version", point.version, "at least 1")
    if not point.hidden:
        require_vector(f"{field}.profile", point.profile, dimension)
        if point.content.size:
            require_vector(f"{field}.content", point.content, dimension)
        if point.lexical.indices or point.lexical.values:
            require_sparse(f"{field}.lexical", point.lexical)


def _require_span(field: str, span: SpanPoint, dimension: int) -> None:
    for name in ("key", "citing_id", "cited_id"):
        if not getattr(span, name):
            raise InvalidField(f"{field}.{name}", "", "a value")
    if span.version < 1:
        raise InvalidField(f"{field}.version", span.version, "at least 1")
    if not span.hidden:
        require_vector(f"{field}.vector", span.vector, dimension)
