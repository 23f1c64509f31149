"""The embedded store: qdrant-edge shards in a folder, two per view, and a registry file."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from citewell.index.durability import sync_new_entry, sync_tree
from citewell.index.edge_shard import ENGINE, EdgePoints, OneThread, create_shard
from citewell.index.points import SCHEMA_VERSION
from citewell.index.store import Kind
from citewell.index.views import Registry, View, is_readable
from citewell.runtime import telemetry
from citewell.runtime.errors import CitewellError, FailedPrecondition, NotFound, StorageFull
from citewell.runtime.owner_lock import OwnerLock


class EdgeStore:
    """Each view is a folder. Only one process may own the store, because the engine's shards allow only one."""

    engine = ENGINE

    def __init__(
        self, folder: Path, *, min_free_bytes: int = 0, owner_wait_seconds: float = 0.0, flush_seconds: float = 30.0
    ) -> None:
        self._folder, self._min_free_bytes, self._owner_wait_seconds = folder, min_free_bytes, owner_wait_seconds
        self._flush_seconds = flush_seconds
        self._registry = Registry()
        self._points: dict[tuple[str, Kind], EdgePoints] = {}
        self._thread = OneThread()
        self._lock = OwnerLock(folder / "lock", f"the store {folder}", "STORE_IN_USE")

    async def open(self) -> None:
        await self._lock.acquire(self._owner_wait_seconds)
        try:
            await self._thread.run(self._load)
        except CitewellError:
            raise
        except Exception as error:  # a damaged registry or shard
            raise FailedPrecondition(
                f"the store {self._folder} cannot be read ({error}): move it away and rebuild the view from the ledger",
                reason="STORE_UNREADABLE",
            ) from error

    def _load(self) -> None:
        path = self._folder / "views.json"
        registry = _read_registry(path)
        ours = {*registry.views, "lost+found"}  # the latter is of a disk that is mounted here
        others = [entry for entry in self._folder.iterdir() if entry.is_dir() and entry.name not in ours]
        if not path.exists():
            self._require_empty(others)
            _write_registry(path, registry)  # from now on the folder is known as a store
        for entry in filter(_is_of_a_view, others):  # left by a crash while a view was created or dropped
            shutil.rmtree(entry)
        self._points = {(name, kind): self._open_points(name, kind) for name in registry.views for kind in Kind}
        self._registry = registry

    def _require_empty(self, folders: list[Path]) -> None:
        if folders:
            raise FailedPrecondition(
                f"the store {self._folder} has no views.json, but a folder {min(folders).name!r}: it seems to be no "
                "store; CITEWELL_INDEX__FOLDER must name a folder of its own",
                reason="STORE_UNREADABLE",
            )

    def _open_points(self, name: str, kind: Kind) -> EdgePoints:
        return EdgePoints(self._folder / name / kind.value, self._thread, self._min_free_bytes, self._flush_seconds)

    async def close(self) -> None:
        await self._thread.run(self._close_points, list(self._points))
        self._thread.shutdown()
        self._lock.release()

    def _close_points(self, keys: list[tuple[str, Kind]]) -> None:
        for key in keys:
            self._points.pop(key).close()

    async def check(self) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < self._min_free_bytes:
            raise StorageFull(f"{free >> 20} MiB are free for the store; writes are refused")

    async def registry(self, *, fresh: bool = False) -> Registry:
        return self._registry

    async def create(self, view: View) -> bool:
        def create() -> None:
            shutil.rmtree(self._folder / view.name, ignore_errors=True)
            for kind in Kind:
                create_shard(self._folder / view.name / kind.value, kind, view.dimension)
                self._points[view.name, kind] = self._open_points(view.name, kind)
            sync_tree(self._folder / view.name)
            self._save(replace(self._registry, views={**self._registry.views, view.name: view}))

        await self._thread.run(create)
        return True

    async def serve(self, name: str) -> None:
        await self._thread.run(self._save, replace(self._registry, serving=name))

    async def drop(self, name: str) -> None:
        def drop() -> None:
            if name not in self._registry.views:
                return
            left = {view.name: view for view in self._registry.views.values() if view.name != name}
            self._save(replace(self._registry, views=left))
            self._close_points([(name, kind) for kind in Kind])
            shutil.rmtree(self._folder / name)

        await self._thread.run(drop)

    def points(self, view: View, kind: Kind) -> EdgePoints:
        try:
            return self._points[view.name, kind]
        except KeyError:
            raise NotFound(f"view {view.name!r} was dropped", reason="UNKNOWN_VIEW") from None

    async def disk_bytes(self, view: View) -> int:
        def used() -> int:  # allocated blocks, because the engine's files are sparse
            return sum(path.stat().st_blocks * 512 for path in (self._folder / view.name).rglob("*"))

        return await self._thread.run(used)

    def _save(self, registry: Registry) -> None:
        _write_registry(self._folder / "views.json", registry)
        self._registry = registry


def _is_of_a_view(folder: Path) -> bool:
    """Whether the folder holds nothing but shards, so that it may be deleted."""
    return {entry.name for entry in folder.iterdir()} <= {kind.value for kind in Kind}


def _read_registry(path: Path) -> Registry:
    try:
        written = json.loads(path.read_text())
    except FileNotFoundError:
        return Registry()
    if not is_readable(written["schema_version"]):
        names = [view["name"] for view in written["views"]]
        telemetry.logger.warning("views of an older schema are dropped; the profiler fills them anew", views=names)
        return Registry()
    return Registry({view["name"]: View(**view) for view in written["views"]}, written["serving"])


def _write_registry(path: Path, registry: Registry) -> None:
    """Replaces the file atomically, also across a power cut."""
    written = {
        "schema_version": SCHEMA_VERSION,
        "serving": registry.serving,
        "views": [asdict(view) for view in registry.views.values()],
    }
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(written, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_new_entry(path)
