"""The store on a Qdrant server or cluster: three collections a view, one alias for the served one.

<prefix>-<view>-papers    profiles, quantised; its metadata describes the view
<prefix>-<view>-spans     citing contexts
<prefix>-<view>-changes   the numbered log that copies in memory follow
<prefix>                  alias of the served view's papers
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from qdrant_client import AsyncQdrantClient, models

from citewell.index.hybrid import MOST_NAMED
from citewell.index.points import CONTENT, INTEGERS, LEXICAL, PAPER_KEYWORDS, PROFILE, SPAN, SPAN_KEYWORDS
from citewell.index.qdrant_points import ENGINE, OVERSAMPLING, ChangeLog, QdrantPoints, ask
from citewell.index.store import Kind
from citewell.index.views import Registry, View, is_readable
from citewell.runtime.errors import FailedPrecondition

LEAST_SERVER = (1, 17)
"""Earlier servers ignore the conditions under which a write may replace a point."""
_REGISTRY_SECONDS = 1.0
_CHANGES = "changes"
_INTEGERS = (*INTEGERS, "version")


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How collections are distributed. Qdrant's default is one shard and one copy."""

    shards: int = 1
    replicas: int = 1
    write_consistency: int = 1
    strict: bool = True


class QdrantStore:
    """Views as collections; any number of index processes may share them."""

    engine = ENGINE

    def __init__(
        self,
        connect: Callable[[], AsyncQdrantClient],
        *,
        prefix: str = "citewell",
        shape: ClusterShape = ClusterShape(),  # frozen
        exact: bool = False,
    ) -> None:
        self._connect, self._prefix, self._exact = connect, prefix, exact
        self._shape = shape or ClusterShape()
        self._registry, self._registry_read = Registry(), float("-inf")
        self._logs: dict[View, ChangeLog] = {}

    async def open(self) -> None:
        self._client = self._connect()
        version = (await ask(self._client.info())).version
        if tuple(int(part) for part in version.split(".")[:2]) < LEAST_SERVER:
            least = ".".join(map(str, LEAST_SERVER))
            raise FailedPrecondition(
                f"Qdrant {version} is too old, {least} or later is needed", reason="OLD_STORE", stored=version
            )
        await self._read_registry()

    async def close(self) -> None:
        await self._client.close()

    async def check(self) -> None:
        await self._read_registry()

    async def registry(self) -> Registry:
        """Other processes create and serve views too, so the registry is read again after a second."""
        if time.monotonic() - self._registry_read > _REGISTRY_SECONDS:
            await self._read_registry()
        return self._registry

    async def _read_registry(self) -> None:
        served = {alias.collection_name for alias in (await ask(self._client.get_aliases())).aliases
                  if alias.alias_name == self._prefix}  # fmt: skip
        views, serving = {}, ""
        for listed in (await ask(self._client.get_collections())).collections:
            if listed.name.startswith(f"{self._prefix}-") and listed.name.endswith(f"-{Kind.PAPERS.value}"):
                told = (await ask(self._client.get_collection(listed.name))).config.metadata or {}
                if "schema_version" not in told:
                    continue  # being created by another process
                if not is_readable(told["schema_version"]):
                    continue  # `create` replaces it
                view = View(**{property_.name: told[property_.name] for property_ in fields(View)})
                if listed.name != self.collection(view.name, Kind.PAPERS.value):
                    continue  # belongs to another prefix that begins with this one
                views[view.name] = view
                serving = view.name if listed.name in served else serving
        self._registry, self._registry_read = Registry(views, serving), time.monotonic()

    async def create(self, view: View) -> None:
        # Papers last: they define the view, so a crash before this point leaves no view.
        await self._create(view, _CHANGES, {}, integers=("number",))
        on_disk = {"size": view.dimension, "distance": models.Distance.COSINE, "on_disk": True}
        no_graph = models.HnswConfigDiff(m=0)
        spans = models.VectorParams(**on_disk, hnsw_config=no_graph, quantization_config=_int8(in_memory=False))
        await self._create(view, Kind.SPANS.value, {SPAN: spans}, SPAN_KEYWORDS, _INTEGERS)
        papers = {
            PROFILE: models.VectorParams(
                size=view.dimension, distance=models.Distance.COSINE, quantization_config=_int8(in_memory=True)
            ),
            CONTENT: models.VectorParams(**on_disk, hnsw_config=no_graph),
        }
        await self._create(view, Kind.PAPERS.value, papers, PAPER_KEYWORDS, _INTEGERS, metadata=asdict(view))
        await self._read_registry()

    async def _create(
        self,
        view: View,
        part: str,
        vectors: dict[str, models.VectorParams],
        keywords: tuple[str, ...] = (),
        integers: tuple[str, ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> None:
        name = self.collection(view.name, part)
        await ask(self._client.delete_collection(name))  # left by a crash
        sparse = {LEXICAL: models.SparseVectorParams()} if part == Kind.PAPERS.value else {}
        await ask(
            self._client.create_collection(
                name,
                vectors_config=vectors,
                sparse_vectors_config=sparse,
                shard_number=1 if part == _CHANGES else self._shape.shards,
                replication_factor=self._shape.replicas,
                write_consistency_factor=self._shape.write_consistency,
                strict_mode_config=_STRICT if self._shape.strict else None,
                on_disk_payload=True,
                metadata=metadata,
            )
        )
        for field_name, schema in (
            *((keyword, models.PayloadSchemaType.KEYWORD) for keyword in keywords),
            *((integer, models.PayloadSchemaType.INTEGER) for integer in integers),
        ):
            await ask(self._client.create_payload_index(name, field_name, schema))

    async def serve(self, name: str) -> None:
        """One request replaces the alias, so that a search always finds exactly one serving view."""
        operations: list[Any] = []
        if (await self.registry()).serving:
            operations.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self._prefix)))
        alias = models.CreateAlias(collection_name=self.collection(name, Kind.PAPERS.value), alias_name=self._prefix)
        operations.append(models.CreateAliasOperation(create_alias=alias))
        await ask(self._client.update_collection_aliases(operations))
        await self._read_registry()

    async def drop(self, name: str) -> None:
        for part in (Kind.PAPERS.value, Kind.SPANS.value, _CHANGES):
            await ask(self._client.delete_collection(self.collection(name, part)))
        await self._read_registry()

    def points(self, view: View, kind: Kind) -> QdrantPoints:
        if view not in self._logs:
            self._logs[view] = ChangeLog(self._client, self.collection(view.name, _CHANGES))
        return QdrantPoints(
            self._client, self.collection(view.name, kind.value), kind, self._logs[view], exact=self._exact
        )

    async def disk_bytes(self, view: View) -> int:
        """Unknown: the server does not report it per collection."""
        return 0

    def collection(self, view: str, part: str) -> str:
        return f"{self._prefix}-{view}-{part}"

    async def snapshot(self, view: View) -> dict[str, str]:
        """A snapshot of each of the view's collections on the server: collection → snapshot's name.

        The change log is saved before the points that it names. After a restore, copies may read some points twice, but
        never miss one. In a cluster every node keeps the snapshots of its own shards.
        """
        taken = {}
        for part in (_CHANGES, Kind.SPANS.value, Kind.PAPERS.value):
            name = self.collection(view.name, part)
            described = await ask(self._client.create_snapshot(name, wait=True))
            assert described is not None
            taken[name] = described.name
        return taken

    async def restore(self, locations: dict[str, str]) -> None:
        """Brings collections back from snapshots at file:// or http(s):// addresses the server can read.

        The snapshot wins over what is there. Serve the view afterwards: aliases are not part of a snapshot.
        """
        for name, location in locations.items():
            await ask(
                self._client.recover_snapshot(name, location, priority=models.SnapshotPriority.SNAPSHOT, wait=True)
            )
        self._logs.clear()
        await self._read_registry()


def _int8(*, in_memory: bool) -> models.ScalarQuantization:
    config = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=in_memory)
    return models.ScalarQuantization(scalar=config)


_STRICT = models.StrictModeConfig(
    enabled=True,
    # Twice the largest search and what is added to see ties at its end; searches by words ask for no more either.
    max_query_limit=MOST_NAMED,
    unindexed_filtering_retrieve=False,
    unindexed_filtering_update=False,
    search_max_oversampling=OVERSAMPLING,
    search_allow_exact=True,
    upsert_max_batchsize=1_000,
    filter_max_conditions=20,
    condition_max_size=10_000,
)
"""Limits that citewell's own requests never reach; they stop mistakes."""
