"""What only a real Qdrant server can show. Runs where CITEWELL_TEST_QDRANT_URL names one, 1.17 or later."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from qdrant_client import AsyncQdrantClient, models

from citewell.index.index import Index
from citewell.index.points import PROFILE, PaperPoint, Vector, paper_to_point
from citewell.index.qdrant_server import ClusterShape, QdrantStore
from citewell.index.queries import Search
from citewell.index.store import Kind
from citewell.index.views import View
from citewell.scholarly.papers import Paper

pytestmark = pytest.mark.qdrant_server

DIMENSION = 64
VIEW = View("main", "e1", "m1", DIMENSION)


def connect() -> AsyncQdrantClient:
    return AsyncQdrantClient(url=os.environ["CITEWELL_TEST_QDRANT_URL"], prefer_grpc=True)


def vector(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def paper(number: int, version: int = 1, seed: int | None = None) -> PaperPoint:
    return PaperPoint(Paper(f"p{number:05}"), version, vector(number if seed is None else seed))


@pytest.fixture
async def stores() -> AsyncIterator[list[QdrantStore]]:
    """Two index processes' stores over the same collections, two shards each, the first with a served view."""
    prefix, shape = f"test-{uuid.uuid4().hex[:12]}", ClusterShape(shards=2)
    opened = [QdrantStore(connect, prefix=prefix, shape=shape) for _ in range(2)]
    for store in opened:
        await store.open()
    await opened[0].create(VIEW)
    await opened[0].serve(VIEW.name)
    yield opened
    for name in (await opened[0].registry()).views:
        await opened[0].drop(name)
    for store in opened:
        await store.close()


async def test_collections_are_made_as_they_are_told(stores: list[QdrantStore]) -> None:
    client = connect()
    name = stores[0].collection(VIEW.name, Kind.PAPERS.value)
    config = (await client.get_collection(name)).config
    assert config.params.shard_number == 2
    assert config.strict_mode_config is not None
    assert config.strict_mode_config.enabled
    assert isinstance(config.params.vectors, dict)
    assert config.params.vectors[PROFILE].quantization_config is not None
    schema = (await client.get_collection(name)).payload_schema
    assert {"venue", "year", "last_day", "hidden", "version"} <= schema.keys()
    await client.close()


async def test_strict_mode_refuses_a_filter_without_an_index(stores: list[QdrantStore]) -> None:
    client = connect()
    titled = models.FieldCondition(key="title", match=models.MatchValue(value="x"))
    with pytest.raises(Exception, match=r"(?i)index"):
        await client.scroll(
            stores[0].collection(VIEW.name, Kind.PAPERS.value), scroll_filter=models.Filter(must=[titled])
        )
    await client.close()


async def test_the_newest_version_wins_whoever_writes_it(stores: list[QdrantStore]) -> None:
    versions = list(range(1, 41))
    np.random.default_rng(1).shuffle(versions)
    writers = [store.points(VIEW, Kind.PAPERS) for store in stores]
    await asyncio.gather(
        *(
            writers[number % 2].upsert([paper_to_point(paper(0, version, seed=version))])
            for number, version in enumerate(versions)
        )
    )
    [stored] = await writers[0].read([paper_to_point(paper(0)).id], (PROFILE,))
    assert stored.version == 40
    assert np.allclose(stored.dense(PROFILE), paper_to_point(paper(0, 40, seed=40)).dense(PROFILE), atol=1e-6)


async def test_two_writers_share_one_log_without_gaps(stores: list[QdrantStore]) -> None:
    writers = [store.points(VIEW, Kind.PAPERS) for store in stores]
    batches = [[paper_to_point(paper(number))] for number in range(40)]
    await asyncio.gather(*(writers[number % 2].upsert(batch) for number, batch in enumerate(batches)))
    assert await writers[0].change_number() == await writers[1].change_number() == 40
    for reader in writers:
        assert (await reader.changes(0)).ids == {batch[0].id for batch in batches}


async def test_one_request_switches_the_served_view_for_every_process(stores: list[QdrantStore]) -> None:
    second = replace(VIEW, name="second")
    await stores[0].create(second)
    await stores[0].serve("second")
    await stores[1].check()
    assert (await stores[1].registry()).serving == "second"


async def test_int8_with_rescoring_finds_what_a_full_scan_finds(stores: list[QdrantStore]) -> None:
    index = Index(stores[0])
    for start in range(0, 20_000, 1000):
        await index.upsert("main", "e1", [paper(number) for number in range(start, start + 1000)], [])
    recalls = []
    for seed in range(20):
        query = vector(50_000 + seed)
        [quick, full] = [await index.search(Search(300, query, exact=exact)) for exact in (False, True)]
        recalls.append(len({hit.paper.id for hit in quick.papers} & {hit.paper.id for hit in full.papers}) / 300)
    assert np.mean(recalls) >= 0.99


async def test_a_snapshot_brings_a_view_back(stores: list[QdrantStore]) -> None:
    index = Index(stores[0])
    await index.upsert("main", "e1", [paper(number) for number in range(100)], [])
    taken = await stores[0].snapshot(VIEW)
    await index.upsert("main", "e1", [paper(number, 2, seed=7) for number in range(100)], [])
    url = os.environ["CITEWELL_TEST_QDRANT_URL"]
    await stores[0].restore({name: f"{url}/collections/{name}/snapshots/{file}" for name, file in taken.items()})
    [points, _] = await index.read_points("main", ["p00003"], [])
    assert points[0].version == 1
    assert len((await index.search(Search(300, vector(3)))).papers) == 100
