"""One set of points on a Qdrant server, behind the Points port."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import UUID

import grpc
import httpx
import numpy as np
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from citewell.index.filters import AnyOf, Between, Condition, NoneOf, NotThese, These
from citewell.index.hybrid import by_words
from citewell.index.points import SPAN_TERMS, TERMS, Point, Sparse, Vector
from citewell.index.store import Answers, Changes, ChangesForgottenError, Hit, Kind, Nearest, Page
from citewell.runtime.deadlines import budget
from citewell.runtime.errors import (
    CitewellError,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    Overloaded,
    Unavailable,
)

ENGINE = "qdrant"
WRITE_CHUNK, READ_CHUNK = 256, 1000
ENTRIES_AT_ONCE = 200
"""Entries of the change log in one answer. Each names up to WRITE_CHUNK points."""
KEPT_ENTRIES, DELETE_EVERY = 5_000, 500
"""How many entries of the change log are kept. Copies in memory that are further behind load everything again."""
OVERSAMPLING = 2.0
"""Quantised vectors select this many times the limit; the full vectors decide."""

T = TypeVar("T")


async def ask(call: Awaitable[T]) -> T:
    """The server's answer within the rest of the caller's deadline; failures become errors of `runtime.errors`."""
    left = budget("the store")
    try:
        async with asyncio.timeout(None if math.isinf(left) else left):
            return await call
    except TimeoutError:
        raise DeadlineExceeded("the store did not answer in time", stage="store") from None
    except grpc.RpcError as error:
        raise _meaning(error) from error
    except QdrantException as error:
        raise Overloaded("the store asks to be called less often") from error
    except UnexpectedResponse as error:
        if error.status_code == HTTPStatus.NOT_FOUND:
            raise NotFound(f"the store lacks what is asked for: {_words(error)}", reason="UNKNOWN_VIEW") from error
        if error.status_code is not None and 400 <= error.status_code < 500:
            raise FailedPrecondition(f"the store refuses the call: {error.reason_phrase}, {_words(error)}") from error
        raise Unavailable(f"the store does not answer: {error.reason_phrase}", stage="store") from error
    except (ApiException, httpx.TransportError) as error:
        raise Unavailable("the store does not answer", stage="store") from error


def _meaning(error: Any) -> CitewellError:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the store did not answer in time", stage="store")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded("the store asks to be called less often")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"the store lacks what is asked for: {error.details()}", reason="UNKNOWN_VIEW")
    if code in _REFUSALS:
        return FailedPrecondition(f"the store refuses the call: {code.name}, {error.details()}")
    return Unavailable(f"the store does not answer: {code.name}", stage="store")


def _words(error: UnexpectedResponse) -> str:
    return error.content.decode(errors="replace")[:_LONGEST_QUOTE]


_LONGEST_QUOTE = 500
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""The server understood the call and refused it: a retry does not help."""


class ChangeLog:
    """A numbered log of writes, without gaps, shared by every index process. The oldest entries are deleted.

    An entry is inserted only if its number is unused, so each number goes to exactly one writer. A writer adds its
    entry after its points and before it answers. A writer that dies in between has acknowledged nothing, and the
    ledger sends the write again.
    """

    def __init__(self, client: AsyncQdrantClient, collection: str) -> None:
        self._client, self._collection = client, collection
        self._number, self._entry = 0, ""
        self._writer = uuid.uuid4().hex
        self.lives = 0
        """How often the log was found replaced, which happens in a restore."""

    async def number(self) -> int:
        """The last entry's number."""
        while last_seen := self._number:
            entry = self._entry
            found = await self._entries(last_seen, ("number", "entry"))
            if found and found[0]["entry"] == entry:
                return self._reached(found[-1])
            if (last_seen, entry) == (self._number, self._entry):  # nobody else has noticed meanwhile
                self.lives += 1
                self._number, self._entry = 0, ""
        order = models.OrderBy(key="number", direction=models.Direction.DESC)
        last, _ = await ask(self._client.scroll(self._collection, limit=1, order_by=order))
        return self._reached((last[0].payload or {}) if last else {"number": 0, "entry": ""})

    def _reached(self, entry: Mapping[str, Any]) -> int:
        number = int(entry["number"])
        if number > self._number:  # else another caller has seen more meanwhile
            self._number, self._entry = number, entry["entry"]
        return number

    async def append(self, kind: Kind, ids: Collection[UUID]) -> None:
        entry_id = f"{self._writer}:{uuid.uuid4().hex}"
        number = await self.number()
        while True:
            number += 1
            payload = {"number": number, "entry": entry_id, "kind": kind.value, "ids": [str(id_) for id_ in ids]}
            insert = models.PointsList(
                points=[models.PointStruct(id=number, vector={}, payload=payload)],
                update_mode=models.UpdateMode.INSERT_ONLY,
            )
            await ask(
                self._client.batch_update_points(
                    self._collection,
                    [models.UpsertOperation(upsert=insert)],
                    wait=True,
                    ordering=models.WriteOrdering.STRONG,
                )
            )
            [stored] = await ask(self._client.retrieve(self._collection, [number]))
            if stored.payload and stored.payload["entry"] == entry_id:
                break
        if number % DELETE_EVERY == 0:
            old = models.FieldCondition(key="number", range=models.Range(lte=number - KEPT_ENTRIES))
            await ask(self._client.delete(self._collection, models.FilterSelector(filter=models.Filter(must=[old]))))

    async def since(self, after: int, kind: Kind) -> Changes:
        number = await self.number()
        entries, more = await self._page(after + 1, ENTRIES_AT_ONCE)
        if after > number or (after < number and (not entries or entries[0]["number"] != after + 1)):
            raise ChangesForgottenError
        ids: set[UUID] = set()
        for entry in entries:
            if entry["kind"] == kind.value:
                ids.update(UUID(id_) for id_ in entry["ids"])
        return Changes(int(entries[-1]["number"]) if entries else after, frozenset(ids), more is not None)

    async def _entries(self, first: int, fields: Sequence[str]) -> list[dict[str, Any]]:
        """All entries from this number on, in order."""
        entries: list[dict[str, Any]] = []
        start: Any = first
        while start is not None:
            found, start = await self._page(start, READ_CHUNK, fields)
            entries += found
        return entries

    async def _page(self, first: int, limit: int, fields: Sequence[str] = ()) -> tuple[list[dict[str, Any]], Any]:
        """Entries from this number on, and where the next ones begin: a collection is scrolled in the order of ids."""
        found, start = await ask(
            self._client.scroll(self._collection, offset=first, limit=limit, with_payload=list(fields) or True)
        )
        return [record.payload or {} for record in found], start


class QdrantPoints:
    """The points of one collection."""

    def __init__(self, client: AsyncQdrantClient, collection: str, kind: Kind, log: ChangeLog, *, exact: bool) -> None:
        self._client, self._collection, self._kind, self._log, self._exact = client, collection, kind, log, exact
        self._lives = log.lives

    async def upsert(self, points: Sequence[Point]) -> int:
        stale = 0
        for start in range(0, len(points), WRITE_CHUNK):
            chunk = points[start : start + WRITE_CHUNK]
            by_version: dict[int, list[Point]] = defaultdict(list)
            for point in chunk:
                by_version[point.version].append(point)
            operations: list[Any] = [
                models.UpsertOperation(
                    upsert=models.PointsList(
                        points=[_struct(point) for point in same], update_filter=_older_than(version)
                    )
                )
                for version, same in by_version.items()
            ]
            await ask(
                self._client.batch_update_points(
                    self._collection, operations, wait=True, ordering=models.WriteOrdering.STRONG
                )
            )
            stored = {point.id: point.version for point in await self.read([point.id for point in chunk])}
            newer = sum(stored.get(point.id, 0) > point.version for point in chunk)
            # Equal versions count as written: the first attempt may have died before it added its entry to the log.
            if newer < len(chunk):
                await self._log.append(self._kind, [point.id for point in chunk])
            stale += newer
        return stale

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        wanted, found = [str(id_) for id_ in ids], []
        for start in range(0, len(wanted), READ_CHUNK):
            found += await ask(
                self._client.retrieve(
                    self._collection,
                    wanted[start : start + READ_CHUNK],
                    with_payload=_without_words(vectors),
                    with_vectors=_stored(vectors),
                )
            )
        return [_point(record) for record in found]

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        if any(query.lexical for query in queries):
            return await by_words(self, queries)
        responses = await ask(
            self._client.query_batch_points(self._collection, [self._request(query) for query in queries])
        )
        hits = [
            [
                Hit(_point(found), found.score if query.vector is not None else (found.payload or {})["last_day"])
                for found in response.points
            ]
            for query, response in zip(queries, responses, strict=True)
        ]
        return Answers(hits, ENGINE, exact=self._exact or all(query.exact for query in queries))

    def _request(self, query: Nearest) -> models.QueryRequest:
        by: Any
        if query.vector is None:
            order = models.OrderBy(key="last_day", direction=models.Direction.DESC)
            by, using, params = models.OrderByQuery(order_by=order), None, None
        else:
            by, using = _vector(query.vector), query.field
            params = models.SearchParams(
                exact=self._exact or query.exact,
                quantization=models.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING),
            )
        return models.QueryRequest(
            query=by,
            using=using,
            filter=_filter(query.conditions),
            params=params,
            limit=query.limit,
            with_payload=list(query.payload) or _without_words(),
        )

    async def page(
        self, start: UUID | None, limit: int, conditions: tuple[Condition, ...] = (), vectors: Collection[str] = ()
    ) -> Page:
        records, next_id = await ask(
            self._client.scroll(
                self._collection,
                scroll_filter=_filter(conditions),
                limit=limit,
                offset=str(start) if start else None,
                with_payload=_without_words(vectors),
                with_vectors=_stored(vectors),
            )
        )
        return Page([_point(record) for record in records], UUID(str(next_id)) if next_id is not None else None)

    async def count(self, conditions: tuple[Condition, ...] = ()) -> int:
        counted = await ask(self._client.count(self._collection, count_filter=_filter(conditions), exact=True))
        return counted.count

    async def change_number(self) -> int:
        number = await self._log.number()
        self._require_same_log()
        return number

    async def changes(self, after: int) -> Changes:
        changes = await self._log.since(after, self._kind)
        self._require_same_log()
        return changes

    def _require_same_log(self) -> None:
        if self._lives != self._log.lives:
            self._lives = self._log.lives
            raise ChangesForgottenError


def _stored(names: Collection[str]) -> Any:
    """The vectors among these names. The bags of words are in the payload."""
    return [name for name in names if name not in (TERMS, SPAN_TERMS)] or False


def _without_words(asked: Collection[str] = ()) -> Any:
    """The payload without the bags of words that were not asked for."""
    left_out = [name for name in (TERMS, SPAN_TERMS) if name not in asked]
    return models.PayloadSelectorExclude(exclude=left_out) if left_out else True


def _older_than(version: int) -> models.Filter:
    """A filter for points that may be replaced. Points without the key match no range, hence the second condition."""
    older = models.FieldCondition(key="version", range=models.Range(lt=version))
    return models.Filter(should=[older, models.IsEmptyCondition(is_empty=models.PayloadField(key="version"))])


def _filter(conditions: Sequence[Condition]) -> models.Filter | None:
    must: list[Any] = []
    must_not: list[Any] = []
    for condition in conditions:
        match condition:
            case Between(key, least, below):
                must.append(models.FieldCondition(key=key, range=models.Range(gte=least, lt=below)))
            case AnyOf(key, values):
                must.append(models.FieldCondition(key=key, match=models.MatchAny(any=list(values))))
            case NoneOf(key, values):
                must_not.append(models.FieldCondition(key=key, match=models.MatchAny(any=list(values))))
            case NotThese(ids):
                must_not.append(models.HasIdCondition(has_id=[str(id_) for id_ in ids]))
            case These(ids):
                must.append(models.HasIdCondition(has_id=[str(id_) for id_ in ids]))
    return models.Filter(must=must, must_not=must_not) if conditions else None


def _struct(point: Point) -> models.PointStruct:
    vectors: dict[str, Any] = {name: _vector(vector) for name, vector in point.vectors.items()}
    return models.PointStruct(id=str(point.id), vector=vectors, payload=point.payload)


def _vector(vector: Vector | Sparse) -> Any:
    if isinstance(vector, Sparse):
        return models.SparseVector(indices=list(vector.indices), values=list(vector.values))
    return vector.tolist()


def _point(record: Any) -> Point:
    vectors: dict[str, Vector | Sparse] = {
        name: Sparse(tuple(vector.indices), tuple(vector.values))
        if isinstance(vector, models.SparseVector)
        else np.array(vector, dtype=np.float32)
        for name, vector in (record.vector or {}).items()
    }
    return Point(UUID(str(record.id)), record.payload, vectors)
