"""Builds the store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from citewell.index.accelerator import AcceleratedStore
from citewell.index.faiss_index import gpu_is_there
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.settings import IndexSettings
from citewell.index.store import Store
from citewell.runtime.settings import UnknownSetting

if TYPE_CHECKING:
    from citewell.index.qdrant_server import QdrantStore


_LONGEST_CALL = 3600
"""Seconds for snapshots and restores, which take minutes and have no caller's deadline."""
# By default the client may wait up to two minutes before it reconnects.
_GRPC_OPTIONS = {"grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 2_000}


def configured_store(settings: IndexSettings) -> Store:
    """A store, not yet open."""
    store: Store = qdrant_store(settings) if settings.store == "qdrant" else _edge_store(settings)
    if settings.accelerator == "none":
        return store
    if settings.accelerator == "gpu" and not gpu_is_there():
        raise UnknownSetting("setting CITEWELL_INDEX__ACCELERATOR is 'gpu': FAISS finds no GPU; is citewell[gpu] in?")
    if settings.words_on_disk:
        settings.folder.mkdir(parents=True, exist_ok=True)
    return AcceleratedStore(
        store,
        settings.accelerator,
        threads=settings.search_threads,
        feed_seconds=settings.feed_seconds,
        words_folder=settings.folder if settings.words_on_disk else None,
    )


def _edge_store(settings: IndexSettings) -> Store:
    return EdgeStore(
        settings.folder,
        min_free_bytes=settings.min_free_megabytes << 20,
        owner_wait_seconds=settings.owner_wait_seconds,
        flush_seconds=settings.flush_seconds,
    )


def qdrant_store(settings: IndexSettings) -> QdrantStore:
    """The store on the server that the settings name, not yet open."""
    # Imported here because the client is slow to import and the embedded store does not need it.
    from qdrant_client import AsyncQdrantClient

    from citewell.index.qdrant_layout import ClusterShape
    from citewell.index.qdrant_server import QdrantStore

    told = settings.qdrant
    api_key = told.api_key.get_secret_value()

    def connect() -> AsyncQdrantClient:
        return AsyncQdrantClient(
            url=told.url,
            grpc_port=told.grpc_port,
            prefer_grpc=True,
            timeout=_LONGEST_CALL,  # the client's own limit; `ask` ends each call at its caller's deadline
            grpc_options=_GRPC_OPTIONS,
            api_key=api_key or None,
            check_compatibility=False,  # the store checks the version itself
        )

    shape = ClusterShape(told.shards, told.replicas, told.write_consistency, told.strict)
    return QdrantStore(connect, prefix=told.prefix, shape=shape, exact=told.exact, api_key=api_key)
