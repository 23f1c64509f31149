"""The ledger on every database it runs on, and the index on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from citewell.index.faiss_index import gpu_is_there
from citewell.index.index import Index
from citewell.profiler.ledger.database import Database
from tests import store_world
from tests.ledger_suite import World
from tests.memory_folder import memory_folder
from tests.store_world import ADAPTERS, VIEW, Adapter, paper, span


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture
def world(url: str) -> Iterator[World]:
    made = World(url)
    yield made
    made.database.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    yield made
    made.close()


_MARKS = {
    "qdrant_server": [pytest.mark.qdrant_server],
    "edge_gpu": [pytest.mark.gpu, pytest.mark.skipif(not gpu_is_there(), reason="FAISS finds no GPU")],
}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, ())) for name in ADAPTERS])
async def adapter(request: pytest.FixtureRequest) -> AsyncIterator[Adapter]:
    with memory_folder() as folder:
        adapter = Adapter(lambda: ADAPTERS[request.param](folder))
        yield adapter
        if request.param == "qdrant_server":
            for name in (await adapter.store.registry()).views:
                await adapter.store.drop(name)
        await adapter.store.close()


@pytest.fixture
async def index(adapter: Adapter) -> Index:
    index = await adapter.open()
    await index.create_view(VIEW)
    await index.serve_view(VIEW.name)
    await store_world.loaded(adapter.store, VIEW)
    return index


@pytest.fixture
async def stocked(index: Index) -> Index:
    """120 papers, and for each of the first ten the contexts of twenty citing papers."""
    await store_world.write(index, *map(paper, range(120)))
    await store_world.write(index, *(span(citing, cited) for cited in range(10) for citing in range(20, 40)))
    return index
