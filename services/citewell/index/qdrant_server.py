"""The store on a Qdrant server or cluster: three collections a view, one alias for the served one.

<prefix>-<view>-papers    profiles, quantised; its metadata describes the view
<prefix>-<view>-spans     citing contexts
<prefix>-<view>-changes   the numbered log that copies in memory follow
<prefix>                  alias of the served view's papers

Any number of processes may create the same view at once. The server creates a collection only once, creation deletes
nothing, and everything else that it does may be repeated. The last step marks the view as complete; until then it is
in no registry. A process that opens the store finishes what a crashed one has begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any

from qdrant_client import AsyncQdrantClient, models

from citewell.index.qdrant_layout import CHANGES, ONE_NODE, STRICT, ClusterShape, Layout, collection_name, layouts
from citewell.index.qdrant_points import ENGINE, ChangeLog, QdrantPoints, ask
from citewell.index.store import Kind
from citewell.index.views import Registry, View, is_readable, require_same
from citewell.runtime.errors import FailedPrecondition, NotFound

LEAST_SERVER = (1, 17)
"""Earlier servers ignore the conditions under which a write may replace a point."""
_REGISTRY_SECONDS = 1.0
_COMPLETE = "complete"


class QdrantStore:
    """Views as collections; any number of index processes may share them."""

    engine = ENGINE

    def __init__(
        self,
        connect: Callable[[], AsyncQdrantClient],
        *,
        prefix: str = "citewell",
        shape: ClusterShape = ONE_NODE,
        exact: bool = False,
        api_key: str = "",
    ) -> None:
        """`api_key` is what the server needs to fetch snapshots from itself."""
        self._connect, self._prefix, self._exact, self._api_key = connect, prefix, exact, api_key
        self._shape = shape
        self._registry, self._registry_read = Registry(), float("-inf")
        self._logs: dict[View, ChangeLog] = {}

    async def open(self) -> None:
        self._client = self._connect()
        _require_version((await ask(self._client.info())).version)
        for view, metadata in await self._views():
            if not metadata.get(_COMPLETE):
                await self.create(view)
                continue
            for layout in layouts(view):  # limits may be those of an earlier release
                with suppress(NotFound):  # dropped meanwhile
                    await self._complete(self.collection(view.name, layout.part), layout)
        await self._read_registry()

    async def close(self) -> None:
        await self._client.close()

    async def check(self) -> None:
        await self._read_registry()

    async def registry(self, *, fresh: bool = False) -> Registry:
        """Other processes create and serve views too, so the registry is read again after a second."""
        if fresh or time.monotonic() - self._registry_read > _REGISTRY_SECONDS:
            await self._read_registry()
        return self._registry

    async def _read_registry(self) -> None:
        aliases = (await ask(self._client.get_aliases())).aliases
        served = {alias.collection_name for alias in aliases if alias.alias_name == self._prefix}
        views = [view for view, metadata in await self._views() if metadata.get(_COMPLETE)]
        serving = next((view.name for view in views if self.collection(view.name, Kind.PAPERS.value) in served), "")
        self._registry, self._registry_read = Registry({view.name: view for view in views}, serving), time.monotonic()

    async def _views(self) -> list[tuple[View, dict[str, Any]]]:
        """The views of this prefix, incomplete ones too, with the metadata of their papers."""
        views = []
        for listed in (await ask(self._client.get_collections())).collections:
            if not listed.name.startswith(f"{self._prefix}-"):
                continue
            told = await self._metadata(listed.name)
            if not told or "schema_version" not in told or not is_readable(told["schema_version"]):
                continue
            view = _view(told)
            if listed.name == self.collection(view.name, Kind.PAPERS.value):  # else it is of a longer prefix
                views.append((view, told))
        return views

    async def _metadata(self, name: str) -> dict[str, Any] | None:
        """A collection's metadata. None if there is no such collection."""
        try:
            return dict((await ask(self._client.get_collection(name))).config.metadata or {})
        except NotFound:
            return None

    async def create(self, view: View) -> bool:
        """True if this call created the view. FailedPrecondition if it exists with other properties."""
        created = [await self._create(view, layout) for layout in layouts(view)]
        for layout in layouts(view):
            await self._complete(self.collection(view.name, layout.part), layout)
        papers = self.collection(view.name, Kind.PAPERS.value)
        await ask(self._client.update_collection(papers, metadata={_COMPLETE: True}))
        await self._read_registry()
        return created[-1]

    async def _create(self, view: View, layout: Layout) -> bool:
        name = self.collection(view.name, layout.part)
        creating = self._client.create_collection(
            name,
            vectors_config=layout.vectors,
            sparse_vectors_config=layout.sparse,
            shard_number=1 if layout.one_shard else self._shape.shards,
            replication_factor=self._shape.replicas,
            write_consistency_factor=self._shape.write_consistency,
            strict_mode_config=STRICT if self._shape.strict else None,
            on_disk_payload=True,
            metadata=asdict(view),
        )
        try:
            return await ask(creating)
        except FailedPrecondition:
            told = await self._metadata(name)
            if told is None:  # refused for another reason
                raise
        if told.get("schema_version", view.schema_version) != view.schema_version:
            raise FailedPrecondition(
                f"collection {name!r} holds schema version {told['schema_version']}, not {view.schema_version}: "
                "delete it, or set another CITEWELL_INDEX__QDRANT__PREFIX",
                reason="SCHEMA_MISMATCH",
                stored=told["schema_version"],
                given=view.schema_version,
            )
        if "name" in told:  # collections of spans and changes had no metadata before 2026-11
            require_same(_view(told), view)
        return False

    async def _complete(self, name: str, layout: Layout) -> None:
        """Creates the missing payload indexes, and sets the limits of strict mode."""
        schema = (await ask(self._client.get_collection(name))).payload_schema
        for field, type_ in layout.indexes.items():
            if field not in schema:
                await ask(self._client.create_payload_index(name, field, type_))
        if self._shape.strict:
            await ask(self._client.update_collection(name, strict_mode_config=STRICT))

    async def serve(self, name: str) -> None:
        """One request replaces the alias, so that a search always finds exactly one serving view."""
        operations: list[Any] = []
        if (await self.registry(fresh=True)).serving:
            operations.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self._prefix)))
        alias = models.CreateAlias(collection_name=self.collection(name, Kind.PAPERS.value), alias_name=self._prefix)
        operations.append(models.CreateAliasOperation(create_alias=alias))
        await ask(self._client.update_collection_aliases(operations))
        await self._read_registry()

    async def drop(self, name: str) -> None:
        for part in (Kind.PAPERS.value, Kind.SPANS.value, CHANGES):
            await ask(self._client.delete_collection(self.collection(name, part)))
        await self._read_registry()

    def points(self, view: View, kind: Kind) -> QdrantPoints:
        if view not in self._logs:
            self._logs[view] = ChangeLog(self._client, self.collection(view.name, CHANGES))
        return QdrantPoints(
            self._client, self.collection(view.name, kind.value), kind, self._logs[view], exact=self._exact
        )

    async def disk_bytes(self, view: View) -> int:
        """Unknown: the server does not report it per collection."""
        return 0

    def collection(self, view: str, part: str) -> str:
        return collection_name(self._prefix, view, part)

    async def snapshot(self, view: View) -> dict[str, str]:
        """A snapshot of each of the view's collections on the server: collection → snapshot's name.

        The change log is saved before the points that it names. After a restore, copies may read some points twice, but
        never miss one. In a cluster every node keeps the snapshots of its own shards.
        """
        taken = {}
        for part in (CHANGES, Kind.SPANS.value, Kind.PAPERS.value):
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
                self._client.recover_snapshot(
                    name,
                    location,
                    api_key=self._api_key or None,
                    priority=models.SnapshotPriority.SNAPSHOT,
                    wait=True,
                )
            )
        self._logs.clear()
        await self._read_registry()


def _view(metadata: dict[str, Any]) -> View:
    return View(**{property_.name: metadata[property_.name] for property_ in fields(View)})


def _require_version(version: str) -> None:
    """Raises FailedPrecondition for a server that is too old. Versions like 1.18.0-dev are read as well."""
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_SERVER:
        least = ".".join(map(str, LEAST_SERVER))
        raise FailedPrecondition(
            f"Qdrant {version} is too old, {least} or later is needed", reason="OLD_STORE", stored=version
        )
