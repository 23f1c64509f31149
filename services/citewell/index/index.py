"""The index service's operations: searches, evidence, conditional writes, views. They work with any Store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from citewell.index import views
from citewell.index.checks import (
    require_direction,
    require_lexical,
    require_paper,
    require_range,
    require_span,
    require_terms,
    require_vector,
)
from citewell.index.filters import VISIBLE, Between, paper_conditions
from citewell.index.paging import from_token, to_token
from citewell.index.points import (
    CONTENT,
    HYBRID,
    LEXICAL,
    PROFILE,
    SPAN,
    SPAN_TERMS,
    TERMS,
    PaperPoint,
    Point,
    SpanPoint,
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
from citewell.index.queries import (
    Evidence,
    EvidenceSearch,
    Found,
    FoundPaper,
    FoundSpans,
    Search,
    SpanSearch,
    Stats,
)
from citewell.index.ranking import ranked
from citewell.index.second_phase_model import SecondPhase, SecondPhaseModel
from citewell.index.span_search import SpanWords, best_contexts
from citewell.index.store import ChangesForgottenError, Kind, Nearest, Points, Store
from citewell.index.views import Registry, View
from citewell.runtime import faults, telemetry
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound
from citewell.scholarly.limits import MAX_QUERY_TERMS
from citewell.scholarly.papers import Paper, SearchFilter

MAX_LIMIT = 3000
MAX_CITED = 1000
MAX_EVIDENCE = 20
MAX_POINTS = 5000
MAX_MATCHED = 50
MAX_SPANS = 500
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_IDS = 5000

_HIDDEN = Between("hidden", least=1)

_durations = telemetry.meter.create_histogram(
    "citewell_index_search.duration", unit="s", description="Time of a search's stages"
)
_written = telemetry.meter.create_counter("citewell_index_upserted", description="Points sent to be written")
_stale = telemetry.meter.create_counter("citewell_index_stale", description="Points the store held newer")
_points = telemetry.meter.create_gauge("citewell_index_points", description="Points of the serving view, hidden too")


class Index:
    """The serving view, over any store."""

    def __init__(
        self,
        store: Store,
        *,
        search_threads: int = 2,
        feed_seconds: float = 0.0,
        second_phase: SecondPhaseModel | None = None,
    ) -> None:
        self._store, self._second_phase = store, second_phase
        self._search_threads, self._feed_seconds = search_threads, feed_seconds
        self._spans: dict[View, SpanWords] = {}
        self._changing_views = asyncio.Lock()

    async def search(self, search: Search) -> Found:
        """The best papers that meet the filter, ties by id: nearest to the profile (eq. 5), by words, or by both."""
        require_range("limit", search.limit, 1, MAX_LIMIT)
        view = await self._view(search.index_view)
        views.require_model(view, search.model_hash)
        vector = None
        if search.searched != LEXICAL:
            require_vector("vector", search.vector, view.dimension)
            require_direction("vector", search.vector)
            vector = unit(search.vector)
        lexical = None
        if search.searched in (LEXICAL, HYBRID):
            if search.lexical is None:
                raise InvalidField("lexical", "", f"the words of the query: the field searched is {search.searched}")
            require_lexical("lexical", search.lexical, MAX_QUERY_TERMS)
            require_range("matched_terms", search.matched_terms, 0, MAX_MATCHED)
            lexical = search.lexical
        budget("the search")
        started = time.monotonic()
        nearest = Nearest(
            search.searched,
            vector,
            search.limit,
            paper_conditions(search.filter),
            search.exact,
            lexical,
            search.matched_terms,
            second=self._second(search, view),
        )
        answers = await ranked(self._store.points(view, Kind.PAPERS), [nearest])
        _durations.record(time.monotonic() - started, {"stage": "papers", "engine": answers.engine})
        found = [
            FoundPaper(paper_of(hit.point.payload), hit.score, hit.profile, hit.lexical, hit.matched, hit.second)
            for hit in answers.hits[0]
        ]
        return Found(found, view.name, answers.engine, answers.exact, self._second_phase if nearest.second else None)

    def _second(self, search: Search, view: View) -> SecondPhase | None:
        """The second phase of a HYBRID search; None without a model, or for a query that has no context."""
        if search.second is None or search.searched != HYBRID or not search.second.context.size:
            return None
        vectors = {name: getattr(search.second, name) for name in ("context", "paper", "window")}
        for name, vector in vectors.items():
            if vector.size:
                require_vector(f"second_phase.{name}_vector", vector, view.dimension)
        if self._second_phase is None:
            return None
        query = replace(search.second, **{name: unit(vector) for name, vector in vectors.items()})
        return SecondPhase(self._second_phase, query)

    async def search_evidence(self, search: EvidenceSearch) -> dict[str, list[Evidence]]:
        """For each cited paper, in the order asked, its best spans."""
        require_range("limit_per_paper", search.limit, 1, MAX_EVIDENCE)
        require_range("cited_ids", len(search.cited_ids), 1, MAX_CITED, "ids")
        view = await self._view(search.index_view)
        vector = self._direction(search.vector, view)
        if search.lexical is not None:
            require_lexical("lexical", search.lexical, MAX_QUERY_TERMS)
        budget("the evidence search")
        started = time.monotonic()
        evidence, answers = await best_contexts(self._store.points(view, Kind.SPANS), search, vector)
        _durations.record(time.monotonic() - started, {"stage": "evidence", "engine": answers.engine})
        return evidence

    async def search_spans(self, search: SpanSearch) -> FoundSpans:
        """The distinct spans that fit the words best, each with the papers cited for it."""
        require_range("prefetch", search.prefetch, 1, MAX_SPANS)
        require_range("terms", len(search.terms.ids), 1, MAX_QUERY_TERMS, "terms")
        require_terms("terms", search.terms)
        view = await self._view(search.index_view)
        views.require_model(view, search.model_hash)
        vector = self._direction(search.vector, view)
        budget("the span search")
        started = time.monotonic()
        spans, mean_length = await self._span_words(view).search(search, vector)
        _durations.record(time.monotonic() - started, {"stage": "spans", "engine": self._store.engine})
        return FoundSpans(spans, view.name, mean_length)

    def _direction(self, vector: Vector, view: View) -> Vector | None:
        """The vector at unit length; None for an empty one."""
        if not vector.size:
            return None
        require_vector("vector", vector, view.dimension)
        require_direction("vector", vector)
        return unit(vector)

    def _span_words(self, view: View) -> SpanWords:
        """Loaded by the first search over spans, so that an index without such searches needs no memory for them."""
        if view not in self._spans:
            spans, papers = (self._store.points(view, kind) for kind in (Kind.SPANS, Kind.PAPERS))
            self._spans[view] = SpanWords(spans, papers, self._search_threads, self._feed_seconds)
        return self._spans[view]

    async def upsert(
        self, index_view: str, epoch: str, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]
    ) -> int:
        """Writes the points that are newer than the stored ones; returns the number of older ones.

        Everything is checked before anything is written.
        """
        require_range("papers", len(papers) + len(spans), 0, MAX_POINTS, "papers and spans")
        view = await self._view(index_view)
        views.require_epoch(view, epoch)
        for number, paper in enumerate(papers):
            require_paper(f"papers[{number}]", paper, view.dimension)
        for number, span in enumerate(spans):
            require_span(f"spans[{number}]", span, view.dimension)
        stale = 0
        # Spans first, so that the contexts behind a paper's new profile are stored before the profile.
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
        """The papers in the requested order, and the ids of unknown and retracted papers."""
        require_range("ids", len(ids), 0, MAX_IDS, "ids")
        view = await self._view("")
        points = await self._read(view, Kind.PAPERS, ids)
        shown = {key: paper_of(point.payload) for key, point in points.items() if not point.payload["hidden"]}
        wanted = list(dict.fromkeys(ids))
        return [shown[id_] for id_ in wanted if id_ in shown], [id_ for id_ in wanted if id_ not in shown]

    async def list_papers(
        self, page_size: int, page_token: str, search_filter: SearchFilter
    ) -> tuple[list[Paper], str]:
        """A page of papers in a fixed order, and the token of the next; empty at the end."""
        require_range("page_size", page_size, 0, MAX_PAGE)
        view = await self._view("")
        conditions = (VISIBLE, *paper_conditions(search_filter))
        start = from_token(page_token, view, search_filter) if page_token else None
        page = await self._store.points(view, Kind.PAPERS).page(start, page_size or DEFAULT_PAGE, conditions)
        token = to_token(page.next_id, view, search_filter) if page.next_id else ""
        return [paper_of(point.payload) for point in page.points], token

    async def read_points(
        self, index_view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        """The stored points that exist, including hidden ones; vectors have unit length."""
        require_range("paper_ids", len(paper_ids) + len(span_keys), 0, MAX_IDS, "paper ids and span keys")
        view = await self._view(index_view)
        papers = await self._read(view, Kind.PAPERS, paper_ids, (PROFILE, CONTENT, TERMS))
        spans = await self._read(view, Kind.SPANS, span_keys, (SPAN, TERMS, SPAN_TERMS))
        return (
            [paper_from_point(papers[key]) for key in sorted(papers)],
            [span_from_point(spans[key]) for key in sorted(spans)],
        )

    async def create_view(self, view: View) -> bool:
        """True if the view was created; False if it existed with the same properties."""
        async with self._changing_views:
            known = (await self._store.registry(fresh=True)).views
            if view.name in known:
                views.require_same(known[view.name], view)
                return False
            return await self._store.create(view)

    async def serve_view(self, name: str) -> str:
        """Makes this view the serving one; returns the name of the previous one."""
        async with self._changing_views:
            registry = await self._store.registry(fresh=True)
            view = registry.resolve(_named(name))
            if view.name != registry.serving:
                await self._store.serve(view.name)
            return registry.serving

    async def drop_view(self, name: str) -> None:
        async with self._changing_views:
            registry = await self._store.registry(fresh=True)
            if _named(name) == registry.serving:
                raise FailedPrecondition(f"view {name!r} is served; serve another one first", reason="VIEW_SERVED")
            await self._store.drop(name)

    async def stats(self) -> Stats:
        view = await self._view("")
        papers, spans = (self._store.points(view, kind) for kind in (Kind.PAPERS, Kind.SPANS))
        return Stats(
            view=view,
            papers=await papers.count((VISIBLE,)),
            hidden_papers=await papers.count((_HIDDEN,)),
            spans=await spans.count((VISIBLE,)),
            change_number=await _change_number(papers) + await _change_number(spans),
            disk_bytes=await self._store.disk_bytes(view),
        )

    async def registry(self) -> Registry:
        return await self._store.registry()

    async def stored(self, view: View) -> dict[Kind, int]:
        """The number of points in the view, including hidden ones."""
        return {kind: await self._store.points(view, kind).count() for kind in Kind}

    async def close(self) -> None:
        """Ends background tasks. The caller closes the store."""
        while self._spans:
            await self._spans.popitem()[1].close()

    async def check(self) -> None:
        """Raises when the store cannot be used for searches and writes now."""
        await self._store.check()
        registry = await self._store.registry()
        for gone in self._spans.keys() - set(registry.views.values()):
            await self._spans.pop(gone).close()
        if registry.serving:
            for kind, count in (await self.stored(registry.resolve(""))).items():
                _points.set(count, {"kind": kind.value})

    async def _view(self, name: str) -> View:
        """The named view, or the serving one. What another process has just created or served is found as well."""
        try:
            return (await self._store.registry()).resolve(name)
        except (NotFound, FailedPrecondition):
            return (await self._store.registry(fresh=True)).resolve(name)

    async def _read(self, view: View, kind: Kind, keys: Sequence[str], vectors: Sequence[str] = ()) -> dict[str, Point]:
        if not keys:
            return {}
        points = await self._store.points(view, kind).read({point_id(key) for key in keys}, vectors)
        return {point.key: point for point in points}


async def _change_number(points: Points) -> int:
    with suppress(ChangesForgottenError):
        return await points.change_number()
    return await points.change_number()  # from the feed that replaced the earlier one


def _named(name: str) -> str:
    if not name:
        raise InvalidField("index_view", name, "the name of a view")
    return name
