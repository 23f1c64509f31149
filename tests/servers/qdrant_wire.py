"""What a Qdrant server answers on the wire, over the client's local mode: no server binary is in a package registry.

It speaks gRPC and the two REST calls that the index uses. As a server's documentation says, it creates a collection
once, keeps collections when clients come and go, merges metadata, refuses filters without an index, limits above the
strict mode's, and calls without its key. It is one node, searches exactly, and says nothing about speed.
"""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from qdrant_client import AsyncQdrantClient, models
from qdrant_client import grpc as wire
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc
from qdrant_client.grpc.collections_service_pb2_grpc import CollectionsServicer, add_CollectionsServicer_to_server
from qdrant_client.grpc.points_service_pb2_grpc import PointsServicer, add_PointsServicer_to_server
from qdrant_client.grpc.qdrant_pb2_grpc import QdrantServicer, add_QdrantServicer_to_server
from qdrant_client.grpc.snapshots_service_pb2_grpc import SnapshotsServicer, add_SnapshotsServicer_to_server


class QdrantWire:
    """A server on free ports. `stop` and `start` keep the data and the ports; `lose_everything` empties it."""

    def __init__(self, version: str = "1.18.3", api_key: str = "") -> None:
        self.version, self.api_key = version, api_key
        self.grpc_port = self._rest_port = 0
        self.before: Callable[[str, Any], Awaitable[None]] | None = None
        """Called with each gRPC call before it is answered: its name, its request. It may wait, or raise Refused."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="qdrant", daemon=True)
        self._thread.start()
        self.data = _Data()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._rest_port}"

    def start(self) -> Self:
        self._rest = ThreadingHTTPServer(("127.0.0.1", self._rest_port), _rest_handler(self))
        self._rest_port = self._rest.server_address[1]
        threading.Thread(target=self._rest.serve_forever, name="qdrant-rest", daemon=True).start()
        self.run(self._start())
        return self

    async def _start(self) -> None:
        self._server = grpc.aio.server(interceptors=[_Guard(self)], options=[("grpc.so_reuseport", 0)])
        add_QdrantServicer_to_server(_Root(self), self._server)
        add_CollectionsServicer_to_server(_Collections(self.data), self._server)
        add_PointsServicer_to_server(_Points(self.data), self._server)
        add_SnapshotsServicer_to_server(_Snapshots(self.data), self._server)
        self.grpc_port = self._server.add_insecure_port(f"127.0.0.1:{self.grpc_port}")
        await self._server.start()

    def stop(self) -> None:
        """Cuts every connection, as the end of the process would."""
        self.run(self._server.stop(None))
        self._rest.shutdown()
        self._rest.server_close()

    def close(self) -> None:
        with suppress(Exception):
            self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lose_everything(self) -> None:
        self.run(self.data.clear())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def client(self) -> AsyncQdrantClient:
        return AsyncQdrantClient(
            url=self.url,
            grpc_port=self.grpc_port,
            prefer_grpc=True,
            api_key=self.api_key or None,
            check_compatibility=False,
        )


class _Data:
    """Collections in the client's local mode, what the local mode ignores about them, and snapshots."""

    def __init__(self) -> None:
        self.local = AsyncQdrantClient(":memory:")
        self.made: dict[str, wire.CreateCollection] = {}
        self.indexes: dict[str, dict[str, wire.PayloadSchemaInfo]] = {}
        self.snapshots: dict[str, tuple[wire.CreateCollection, dict[str, wire.PayloadSchemaInfo], list[Any]]] = {}

    async def clear(self) -> None:
        for name in list(self.made):
            await self.delete(name)

    async def create(self, request: wire.CreateCollection) -> None:
        if request.collection_name in self.made:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"Collection `{request.collection_name}` already exists!")
        config, sparse = request.vectors_config, request.sparse_vectors_config
        kind = config.WhichOneof("config")
        await self.local.create_collection(
            request.collection_name,
            vectors_config=GrpcToRest.convert_vectors_config(config) if kind else {},
            sparse_vectors_config=GrpcToRest.convert_sparse_vector_config(sparse),
        )
        self.made[request.collection_name] = wire.CreateCollection.FromString(request.SerializeToString())
        self.indexes[request.collection_name] = {}

    async def delete(self, name: str) -> bool:
        known = self.made.pop(name, None) is not None
        if known:
            self.indexes.pop(name)
            aliases = await self.local.get_aliases()
            await self.local.update_collection_aliases(
                [
                    models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias.alias_name))
                    for alias in aliases.aliases
                    if alias.collection_name == name
                ]
            )
            await self.local.delete_collection(name)
        return known

    def require(self, name: str) -> wire.CreateCollection:
        if name not in self.made:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Not found: Collection `{name}` doesn't exist!")
        return self.made[name]

    def require_strict(self, name: str, conditions: wire.Filter | None = None, limit: int = 0) -> None:
        """What strict mode refuses: limits above its own, and filters on fields without an index."""
        strict = self.require(name).strict_mode_config
        if not strict.enabled:
            return
        if strict.max_query_limit and limit > strict.max_query_limit:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT, f"Forbidden: Limit exceeded {limit} > {strict.max_query_limit}"
            )
        if conditions is None or strict.unindexed_filtering_retrieve:
            return
        for condition in (*conditions.must, *conditions.should, *conditions.must_not):
            key = condition.field.key if condition.HasField("field") else ""
            if key and key not in self.indexes[name]:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"Bad request: Index required but not found for {key}")

    async def take_snapshot(self, name: str) -> str:
        made = self.require(name)
        records, start = [], None
        while True:
            found, start = await self.local.scroll(name, limit=10_000, offset=start, with_vectors=True)
            records += found
            if start is None:
                break
        file = f"{name}-{len(self.snapshots)}.snapshot"
        self.snapshots[file] = made, dict(self.indexes[name]), records
        return file

    async def recover(self, name: str, location: str) -> None:
        made, indexes, records = self.snapshots[location.rsplit("/", 1)[1]]
        aliases = [
            alias.alias_name for alias in (await self.local.get_aliases()).aliases if alias.collection_name == name
        ]
        await self.delete(name)
        await self.create(made)
        self.indexes[name] = indexes
        points = [
            models.PointStruct(id=record.id, vector=record.vector or {}, payload=record.payload) for record in records
        ]
        if points:
            await self.local.upsert(name, points)
        for alias in aliases:
            again = models.CreateAlias(collection_name=name, alias_name=alias)
            await self.local.update_collection_aliases([models.CreateAliasOperation(create_alias=again)])


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


class _Guard(grpc.aio.ServerInterceptor):
    """Checks the key, calls the test's hook, and turns refusals into gRPC errors."""

    def __init__(self, server: QdrantWire) -> None:
        self._server = server

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        key = dict(details.invocation_metadata or ()).get("api-key", "")
        name = details.method.rsplit("/", 1)[1]

        async def answer(request: Any, context: Any) -> Any:
            if self._server.api_key and key != self._server.api_key:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Must provide an API key")
            try:
                if self._server.before is not None:
                    await self._server.before(name, request)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the local mode, about what only a server can do
                    return await handler.unary_unary(request, context)
            except Refused as refused:
                await context.abort(refused.code, refused.words)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class _Root(QdrantServicer):  # type: ignore[misc]
    def __init__(self, server: QdrantWire) -> None:
        self._server = server

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        return wire.HealthCheckReply(title="qdrant - vector search engine", version=self._server.version)


class _Collections(CollectionsServicer):  # type: ignore[misc]
    def __init__(self, data: _Data) -> None:
        self._data = data

    async def Create(self, request: Any, context: Any) -> Any:
        await self._data.create(request)
        return wire.CollectionOperationResponse(result=True)

    async def Update(self, request: Any, context: Any) -> Any:
        made = self._data.require(request.collection_name)
        for key, value in request.metadata.items():
            made.metadata[key].CopyFrom(value)
        if request.HasField("strict_mode_config"):
            made.strict_mode_config.MergeFrom(request.strict_mode_config)
        return wire.CollectionOperationResponse(result=True)

    async def Delete(self, request: Any, context: Any) -> Any:
        return wire.CollectionOperationResponse(result=await self._data.delete(request.collection_name))

    async def List(self, request: Any, context: Any) -> Any:
        return wire.ListCollectionsResponse(
            collections=[wire.CollectionDescription(name=name) for name in self._data.made]
        )

    async def Get(self, request: Any, context: Any) -> Any:
        made = self._data.require(request.collection_name)
        params = wire.CollectionParams(
            shard_number=made.shard_number or 1,
            on_disk_payload=made.on_disk_payload,
            vectors_config=made.vectors_config,
            replication_factor=made.replication_factor or 1,
            write_consistency_factor=made.write_consistency_factor or 1,
            sparse_vectors_config=made.sparse_vectors_config,
        )
        config = wire.CollectionConfig(
            params=params,
            hnsw_config=wire.HnswConfigDiff(m=16, ef_construct=100, full_scan_threshold=10_000),
            optimizer_config=wire.OptimizersConfigDiff(
                deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=2, flush_interval_sec=5
            ),
            wal_config=wire.WalConfigDiff(wal_capacity_mb=32, wal_segments_ahead=0),
            strict_mode_config=made.strict_mode_config if made.HasField("strict_mode_config") else None,
            metadata=made.metadata,
        )
        info = wire.CollectionInfo(
            status=wire.CollectionStatus.Green,
            optimizer_status=wire.OptimizerStatus(ok=True),
            segments_count=1,
            config=config,
            payload_schema=self._data.indexes[request.collection_name],
            points_count=(await self._data.local.count(request.collection_name)).count,
        )
        return wire.GetCollectionInfoResponse(result=info)

    async def CollectionExists(self, request: Any, context: Any) -> Any:
        exists = request.collection_name in self._data.made
        return wire.CollectionExistsResponse(result=wire.CollectionExists(exists=exists))

    async def UpdateAliases(self, request: Any, context: Any) -> Any:
        operations = [GrpcToRest.convert_alias_operations(action) for action in request.actions]
        for operation in operations:
            if isinstance(operation, models.CreateAliasOperation):
                self._data.require(operation.create_alias.collection_name)
        await self._data.local.update_collection_aliases(operations)
        return wire.CollectionOperationResponse(result=True)

    async def ListAliases(self, request: Any, context: Any) -> Any:
        aliases = (await self._data.local.get_aliases()).aliases
        return wire.ListAliasesResponse(aliases=[RestToGrpc.convert_alias_description(each) for each in aliases])


class _Points(PointsServicer):  # type: ignore[misc]
    def __init__(self, data: _Data) -> None:
        self._data, self._local = data, data.local

    async def CreateFieldIndex(self, request: Any, context: Any) -> Any:
        self._data.require(request.collection_name)
        schema = {
            wire.FieldType.FieldTypeKeyword: wire.PayloadSchemaType.Keyword,
            wire.FieldType.FieldTypeInteger: wire.PayloadSchemaType.Integer,
        }[request.field_type]
        self._data.indexes[request.collection_name][request.field_name] = wire.PayloadSchemaInfo(data_type=schema)
        return _done()

    async def UpdateBatch(self, request: Any, context: Any) -> Any:
        self._data.require(request.collection_name)
        operations = [GrpcToRest.convert_points_update_operation(each) for each in request.operations]
        await self._local.batch_update_points(request.collection_name, operations)
        return wire.UpdateBatchResponse(
            result=[wire.UpdateResult(operation_id=0, status=wire.UpdateStatus.Completed) for _ in operations]
        )

    async def Delete(self, request: Any, context: Any) -> Any:
        self._data.require(request.collection_name)
        await self._local.delete(request.collection_name, GrpcToRest.convert_points_selector(request.points))
        return _done()

    async def Get(self, request: Any, context: Any) -> Any:
        self._data.require(request.collection_name)
        records = await self._local.retrieve(
            request.collection_name,
            [GrpcToRest.convert_point_id(id_) for id_ in request.ids],
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
            with_vectors=_vectors(request),
        )
        return wire.GetResponse(result=[RestToGrpc.convert_retrieved_point(record) for record in records])

    async def Scroll(self, request: Any, context: Any) -> Any:
        self._data.require_strict(request.collection_name, request.filter, request.limit)
        records, start = await self._local.scroll(
            request.collection_name,
            scroll_filter=GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None,
            limit=request.limit,
            order_by=GrpcToRest.convert_order_by(request.order_by) if request.HasField("order_by") else None,
            offset=GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None,
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload)
            if request.HasField("with_payload")
            else True,
            with_vectors=_vectors(request),
        )
        return wire.ScrollResponse(
            result=[RestToGrpc.convert_retrieved_point(record) for record in records],
            next_page_offset=RestToGrpc.convert_extended_point_id(start) if start is not None else None,
        )

    async def Count(self, request: Any, context: Any) -> Any:
        self._data.require_strict(request.collection_name, request.filter)
        counted = await self._local.count(
            request.collection_name,
            count_filter=GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None,
        )
        return wire.CountResponse(result=wire.CountResult(count=counted.count))

    async def QueryBatch(self, request: Any, context: Any) -> Any:
        for query in request.query_points:
            self._data.require_strict(request.collection_name, query.filter, query.limit)
        queries = [GrpcToRest.convert_query_points(query) for query in request.query_points]
        answers = await self._local.query_batch_points(request.collection_name, queries)
        return wire.QueryBatchResponse(
            result=[
                wire.BatchResult(result=[RestToGrpc.convert_scored_point(hit) for hit in answer.points])
                for answer in answers
            ]
        )


class _Snapshots(SnapshotsServicer):  # type: ignore[misc]
    def __init__(self, data: _Data) -> None:
        self._data = data

    async def Create(self, request: Any, context: Any) -> Any:
        name = await self._data.take_snapshot(request.collection_name)
        return wire.CreateSnapshotResponse(snapshot_description=wire.SnapshotDescription(name=name))


def _rest_handler(server: QdrantWire) -> type[BaseHTTPRequestHandler]:
    """The REST calls: the version, and recovery of a snapshot that the server fetches by its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"title": "qdrant", "version": server.version})

        def do_PUT(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if server.api_key and self.headers["api-key"] != server.api_key:
                self._answer(401, {"status": {"error": "Must provide an API key"}})
            elif server.api_key and told.get("api_key") != server.api_key:
                words = "Failed to download snapshot: HTTP status client error (401 Unauthorized)"
                self._answer(401, {"status": {"error": words}})
            else:
                server.run(server.data.recover(self.path.split("/")[2], told["location"]))
                self._answer(200, {"result": True, "status": "ok", "time": 0.0})

        def _answer(self, status: int, told: Any) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _vectors(request: Any) -> Any:
    told = request.with_vectors
    return GrpcToRest.convert_with_vectors_selector(told) if told.WhichOneof("selector_options") else False


def _done() -> Any:
    return wire.PointsOperationResponse(
        result=wire.UpdateResult(operation_id=0, status=wire.UpdateStatus.Completed), time=0.0
    )
