"""One embedded shard behind the Points port.

All calls of the engine run on the store's one thread: the engine keeps the GIL, so more threads would not help.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import qdrant_edge as edge

from citewell.index.durability import GroupCommit, sync_tree
from citewell.index.filters import AnyOf, Between, Condition, NoneOf, NotThese, These
from citewell.index.hybrid import by_words
from citewell.index.points import (
    CONTENT,
    INTEGERS,
    LEXICAL,
    PAPER_KEYWORDS,
    PROFILE,
    SPAN,
    SPAN_KEYWORDS,
    SPAN_TERMS,
    TERMS,
    Point,
    Sparse,
    Vector,
)
from citewell.index.store import Answers, Changes, Hit, Kind, Nearest, Page
from citewell.runtime.errors import StorageFull
from citewell.runtime.worker_threads import worker_pool

ENGINE = "qdrant-edge"

# Points per write and queries per batch. Small, so that other threads get the GIL again within some milliseconds.
WRITE_CHUNK, QUERY_CHUNK, READ_CHUNK = 64, 16, 500

T = TypeVar("T")


def create_shard(path: Path, kind: Kind, dimension: int) -> None:
    """Creates an empty shard with its payload indexes, and syncs it to disk."""
    path.mkdir(parents=True)
    unread = edge.Memory.Cold  # the operating system pages it in during a search
    if kind is Kind.PAPERS:
        vectors = {
            PROFILE: edge.EdgeVectorParams(dimension, edge.Distance.Cosine),
            CONTENT: edge.EdgeVectorParams(dimension, edge.Distance.Cosine, memory=unread),
        }
        sparse = {LEXICAL: edge.EdgeSparseVectorParams()}
    else:
        vectors, sparse = {SPAN: edge.EdgeVectorParams(dimension, edge.Distance.Cosine, memory=unread)}, {}
    # No HNSW graph: a full scan of 88,000 papers is fast and exact, and building a graph blocks the process.
    shard = edge.EdgeShard.create(str(path), edge.EdgeConfig(vectors=vectors, sparse_vectors=sparse))
    for name in PAPER_KEYWORDS if kind is Kind.PAPERS else SPAN_KEYWORDS:
        shard.update(edge.UpdateOperation.create_field_index(name, edge.PayloadSchemaType.Keyword))
    for name in (*INTEGERS, "change"):
        shard.update(edge.UpdateOperation.create_field_index(name, edge.PayloadSchemaType.Integer))
    shard.close()
    sync_tree(path)


class OneThread:
    """The single thread that runs all calls of the engine, one after the other."""

    def __init__(self) -> None:
        self._executor = worker_pool(1, ENGINE)

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args))
        except Exception as error:  # the engine raises no narrower class
            if "No space left" in str(error):
                raise StorageFull("the store's disk is full") from error
            raise

    def shutdown(self) -> None:
        self._executor.shutdown()


class EdgePoints:
    """The points of one shard.

    The engine writes its write-ahead log through a memory map and syncs it only in a flush, which takes some 30
    times as long as syncing the log's files. This class therefore syncs those files before a write is acknowledged.
    """

    def __init__(self, path: Path, thread: OneThread, min_free_bytes: int, flush_seconds: float) -> None:
        self._path, self._thread = path, thread
        self._min_free_bytes, self._flush_seconds = min_free_bytes, flush_seconds
        self._shard: Any = edge.EdgeShard.load(str(path))  # its type stubs are incomplete
        self._change = self._last_change()
        self._flushed, self._dirty = time.monotonic(), False
        self._commit = GroupCommit(lambda: sync_tree(path / "wal"), lambda: self._change)

    async def upsert(self, points: Sequence[Point]) -> int:
        stale = sum([await self._thread.run(self._write, chunk) for chunk in _chunks(points, WRITE_CHUNK)])
        # Also if nothing was written: points may be stale because of another call's write that is not synced yet.
        await self._commit.durable(self._change)
        return stale

    def _write(self, points: Sequence[Point]) -> int:
        """Reads, compares and writes in one step: the engine's conditional upsert does not report stale points."""
        change = self._change + 1
        records = self._shard.retrieve([point.id for point in points], ["version"], False)
        stored = {record.id: record.payload["version"] for record in records}
        fresh = [
            edge.Point(point.id, _vectors(point), {**point.payload, "change": change})
            for point in points
            if stored.get(point.id, 0) < point.version
        ]
        if fresh:
            self._commit.require_working()
            self._require_space()
            self._shard.update(edge.UpdateOperation.upsert_points(fresh))
            self._change, self._dirty = change, True
            if time.monotonic() - self._flushed > self._flush_seconds:
                self._flush()
        return sum(stored.get(point.id, 0) > point.version for point in points)

    def _require_space(self) -> None:
        # The engine writes through memory maps: on a full disk SIGBUS would kill the process.
        free = shutil.disk_usage(self._path).free
        if free < self._min_free_bytes:
            raise StorageFull(
                f"{free >> 20} MiB are free for the store, {self._min_free_bytes >> 20} MiB must stay free to write"
            )

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        found: list[Point] = []
        for chunk in _chunks(list(ids), READ_CHUNK):
            found += await self._thread.run(self._retrieve, chunk, list(vectors))
        return found

    def _retrieve(self, ids: Sequence[UUID], vectors: list[str]) -> list[Point]:
        return [_point(record) for record in self._shard.retrieve(ids, _without_words(vectors), _stored(vectors))]

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        if any(query.lexical for query in queries):
            return await by_words(self, queries)
        hits: list[list[Hit]] = []
        for chunk in _chunks(queries, QUERY_CHUNK):
            hits += await self._thread.run(self._query, chunk)
        return Answers(hits, ENGINE, exact=True)

    def _query(self, queries: Sequence[Nearest]) -> list[list[Hit]]:
        requests = [_request(query) for query in queries]
        answers = self._shard.query_batch(edge.QueryBatchRequest(requests))
        return [
            [
                Hit(
                    Point(found.id, found.payload),
                    found.score if query.vector is not None else found.payload["last_day"],
                )
                for found in answer
            ]
            for query, answer in zip(queries, answers, strict=True)
        ]

    async def page(
        self, start: UUID | None, limit: int, conditions: tuple[Condition, ...] = (), vectors: Collection[str] = ()
    ) -> Page:
        scroll = edge.ScrollRequest(
            offset=start,
            limit=limit,
            filter=_filter(conditions),
            with_payload=_without_words(vectors),
            with_vector=_stored(vectors),
        )
        return await self._thread.run(self._scroll, scroll)

    def _scroll(self, scroll: Any) -> Page:
        records, next_id = self._shard.scroll(scroll)
        return Page([_point(record) for record in records], next_id)

    async def count(self, conditions: tuple[Condition, ...] = ()) -> int:
        if not conditions:  # the engine reports the number of points without counting
            return int((await self._thread.run(self._shard.info)).points_count)
        count = edge.CountRequest(exact=True, filter=_filter(conditions))
        return int(await self._thread.run(self._shard.count, count))

    async def change_number(self) -> int:
        return self._change

    async def changes(self, after: int) -> Changes:
        """Read from the payloads: each point holds the number of its last write, so the feed is durable as well."""
        number = self._change
        ids: set[UUID] = set()
        start, more = None, number > after
        while more:
            found, start = await self._thread.run(self._changed_ids, after, start)
            ids.update(found)
            more = start is not None
        return Changes(number, frozenset(ids))

    def _changed_ids(self, after: int, start: UUID | None) -> tuple[list[UUID], UUID | None]:
        written_since = _filter((Between("change", least=after + 1),))
        scroll = edge.ScrollRequest(
            offset=start, limit=READ_CHUNK, filter=written_since, with_payload=False, with_vector=False
        )
        records, next_id = self._shard.scroll(scroll)
        return [record.id for record in records], next_id

    def close(self) -> None:
        """Flushes and closes. Call it on the store's thread, or after that thread has ended."""
        self._flush()
        self._shard.close()

    def _flush(self) -> None:
        if self._dirty:
            self._shard.flush()
        self._flushed, self._dirty = time.monotonic(), False

    def _last_change(self) -> int:
        order = edge.OrderBy("change", direction=edge.Direction.Desc)
        found = self._shard.query(edge.QueryRequest(limit=1, query=order, with_payload=["change"]))
        return int(found[0].payload["change"]) if found else 0


def _request(query: Nearest) -> Any:
    if query.vector is None:
        by: Any = edge.OrderBy("last_day", direction=edge.Direction.Desc)
    elif isinstance(query.vector, Sparse):
        by = edge.Query.Nearest(_sparse(query.vector), using=query.field)
    else:
        by = edge.Query.Nearest(query.vector.tolist(), using=query.field)
    return edge.QueryRequest(
        limit=query.limit,
        query=by,
        filter=_filter(query.conditions),
        with_payload=list(query.payload) or _without_words(),
        params=edge.SearchParams(exact=True),
    )


def _stored(names: Collection[str]) -> list[str]:
    """The vectors among these names. The bags of words are in the payload."""
    return [name for name in names if name not in (TERMS, SPAN_TERMS)]


def _without_words(asked: Collection[str] = ()) -> Any:
    """The payload without the bags of words that were not asked for."""
    left_out = [name for name in (TERMS, SPAN_TERMS) if name not in asked]
    return edge.PayloadSelector.Exclude(left_out) if left_out else True


def _filter(conditions: Sequence[Condition]) -> Any:
    must: list[Any] = []
    must_not: list[Any] = []
    for condition in conditions:
        match condition:
            case Between(key, least, below):
                must.append(edge.FieldCondition(key, range=edge.RangeFloat(gte=least, lt=below)))
            case AnyOf(key, values):
                must.append(edge.FieldCondition(key, match=edge.MatchAny(list(values))))
            case NoneOf(key, values):
                must_not.append(edge.FieldCondition(key, match=edge.MatchAny(list(values))))
            case NotThese(ids):
                must_not.append(edge.HasIdCondition(set(ids)))
            case These(ids):
                must.append(edge.HasIdCondition(set(ids)))
    return edge.Filter(must=must, must_not=must_not) if conditions else None


def _vectors(point: Point) -> dict[str, Any]:
    return {
        name: _sparse(vector) if isinstance(vector, Sparse) else vector.tolist()
        for name, vector in point.vectors.items()
    }


def _sparse(sparse: Sparse) -> Any:
    return edge.SparseVector(list(sparse.indices), list(sparse.values))


def _point(record: Any) -> Point:
    vectors: dict[str, Vector | Sparse] = {
        name: Sparse(tuple(vector.indices), tuple(vector.values))
        if isinstance(vector, edge.SparseVector)
        else np.array(vector, dtype=np.float32)
        for name, vector in (record.vector or {}).items()
    }
    return Point(record.id, record.payload, vectors)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
