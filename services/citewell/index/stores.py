"""The store that the settings name."""

from __future__ import annotations

from citewell.index.accelerator import AcceleratedStore
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.settings import IndexSettings
from citewell.index.store import Store


def configured_store(settings: IndexSettings) -> Store:
    """A store, not yet open."""
    store = _qdrant_store(settings) if settings.store == "qdrant" else _edge_store(settings)
    if settings.accelerator == "none":
        return store
    return AcceleratedStore(
        store, settings.accelerator, threads=settings.search_threads, feed_seconds=settings.feed_seconds
    )


def _edge_store(settings: IndexSettings) -> Store:
    return EdgeStore(
        settings.folder,
        min_free_bytes=settings.min_free_megabytes << 20,
        owner_wait_seconds=settings.owner_wait_seconds,
    )


def _qdrant_store(settings: IndexSettings) -> Store:
    # Imported where it is used: the embedded set-up starts faster without the client's thousands of models.
    from qdrant_client import AsyncQdrantClient

    from citewell.index.qdrant_server import ClusterShape, QdrantStore

    told = settings.qdrant

    def connect() -> AsyncQdrantClient:
        return AsyncQdrantClient(
            url=told.url,
            grpc_port=told.grpc_port,
            prefer_grpc=True,
            api_key=told.api_key.get_secret_value() or None,
            check_compatibility=False,  # the store checks for what it needs
        )

    shape = ClusterShape(told.shards, told.replicas, told.write_consistency, told.strict)
    return QdrantStore(connect, prefix=told.prefix, shape=shape, exact=told.exact)
