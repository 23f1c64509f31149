"""A Qdrant server and several index processes. Each test runs against the wire of `qdrant_wire`.

Where CITEWELL_TEST_QDRANT_URL names servers, each test runs against those too: name the oldest and the newest that are
supported, separated by a space.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from qdrant_client import AsyncQdrantClient, models

from citewell.index.accelerator import AcceleratedStore
from citewell.index.index import Index
from citewell.index.points import PROFILE, PaperPoint, Vector, paper_to_point
from citewell.index.qdrant_layout import ClusterShape, layouts
from citewell.index.qdrant_server import QdrantStore
from citewell.index.queries import Search
from citewell.index.ranking import MOST_HITS
from citewell.index.store import Kind
from citewell.index.views import View
from citewell.runtime.errors import FailedPrecondition, NotFound, Unavailable
from citewell.scholarly.papers import Paper
from tests.servers.qdrant_wire import QdrantWire, Refused
from tests.store_world import LOCAL_MODE, loaded

pytestmark = [*LOCAL_MODE, pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")]

DIMENSION = 64
VIEW = View("main", "e1", "m1", DIMENSION)
_URLS = os.environ.get("CITEWELL_TEST_QDRANT_URL", "none").split()


class Real:
    """A server that runs elsewhere."""

    api_key = ""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self) -> AsyncQdrantClient:
        return AsyncQdrantClient(url=self.url, prefer_grpc=True, timeout=60, check_compatibility=False)


Server = QdrantWire | Real


@pytest.fixture(params=["wire", *(pytest.param(url, marks=pytest.mark.qdrant_server) for url in _URLS)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param != "wire":
        yield Real(request.param)
        return
    wire = QdrantWire().start()
    yield wire
    wire.close()


@pytest.fixture
def wire() -> Iterator[QdrantWire]:
    """For what only a server can be made to do that a test controls."""
    wire = QdrantWire(api_key="secret").start()
    yield wire
    wire.close()


def vector(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def paper(number: int, version: int = 1, seed: int | None = None) -> PaperPoint:
    return PaperPoint(Paper(f"p{number:05}"), version, vector(number if seed is None else seed))


@pytest.fixture
async def stores(server: Server) -> AsyncIterator[list[QdrantStore]]:
    """Two index processes' stores over the same collections, two shards each, the first with a served view."""
    prefix, shape = f"test-{uuid.uuid4().hex[:12]}", ClusterShape(shards=2)
    opened = [QdrantStore(server.client, prefix=prefix, shape=shape) for _ in range(2)]
    for store in opened:
        await store.open()
    await opened[0].create(VIEW)
    await opened[0].serve(VIEW.name)
    yield opened
    for name in (await opened[0].registry(fresh=True)).views:
        await opened[0].drop(name)
    for store in opened:
        await store.close()


async def test_collections_are_made_as_they_are_told(stores: list[QdrantStore], server: Server) -> None:
    client = server.client()
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


async def test_strict_mode_refuses_a_filter_without_an_index(stores: list[QdrantStore], server: Server) -> None:
    client = server.client()
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


async def test_int8_with_rescoring_finds_what_a_full_scan_finds(stores: list[QdrantStore], server: Server) -> None:
    index = Index(stores[0])
    for start in range(0, 20_000 if isinstance(server, Real) else 1000, 1000):
        await index.upsert("main", "e1", [paper(number) for number in range(start, start + 1000)], [])
    recalls = []
    for seed in range(20):
        query = vector(50_000 + seed)
        [quick, full] = [await index.search(Search(300, query, exact=exact)) for exact in (False, True)]
        recalls.append(len({hit.paper.id for hit in quick.papers} & {hit.paper.id for hit in full.papers}) / 300)
    assert np.mean(recalls) >= 0.99


async def test_a_snapshot_brings_a_view_back(stores: list[QdrantStore], server: Server) -> None:
    index, other = Index(stores[0]), AcceleratedStore(stores[1], "flat")
    copied = Index(other)
    await other.registry(fresh=True)
    await loaded(other, VIEW)
    await index.upsert("main", "e1", [paper(number) for number in range(100)], [])
    taken = await stores[0].snapshot(VIEW)
    await index.upsert("main", "e1", [paper(number, 2, seed=7) for number in range(100)], [])
    assert (await copied.search(Search(3, vector(7)))).papers[0].score == pytest.approx(1)
    await stores[0].restore({name: f"{server.url}/collections/{name}/snapshots/{file}" for name, file in taken.items()})
    [points, _] = await index.read_points("main", ["p00003"], [])
    assert points[0].version == 1
    assert len((await index.search(Search(300, vector(3)))).papers) == 100
    # The other process was not restarted. It follows what is written after the restore.
    await index.upsert("main", "e1", [paper(200, seed=900)], [])
    for query, nearest in ((vector(900), "p00200"), (vector(3), "p00003")):
        assert (await copied.search(Search(3, query))).papers[0].paper.id == nearest
    await loaded(other, VIEW)
    assert (await copied.search(Search(3, vector(900)))).papers[0].paper.id == "p00200"
    await copied.close()


async def test_equal_vectors_are_ordered_by_id_however_many(stores: list[QdrantStore]) -> None:
    index, count = Index(stores[0]), 7_000
    for start in range(0, count, 1000):
        await index.upsert("main", "e1", [paper(number, seed=1) for number in range(start, start + 1000)], [])
    found = await index.search(Search(300, vector(1), exact=True))
    assert [hit.paper.id for hit in found.papers] == [f"p{number:05}" for number in range(300)]


async def test_two_processes_that_create_a_view_at_once_create_it_once(stores: list[QdrantStore]) -> None:
    """Neither deletes what the other has made, and a write between the two is kept."""
    second = replace(VIEW, name="second")
    indexes = [Index(store) for store in stores]

    async def create_and_write(number: int) -> bool:
        created = await indexes[number].create_view(second)
        await indexes[number].upsert("second", "e1", [paper(number)], [])
        return created

    assert sorted(await asyncio.gather(create_and_write(0), create_and_write(1))) == [False, True]
    [points, _] = await indexes[0].read_points("second", ["p00000", "p00001"], [])
    assert len(points) == 2


async def test_two_processes_that_create_different_views_of_one_name(stores: list[QdrantStore]) -> None:
    one, other = replace(VIEW, name="second"), replace(VIEW, name="second", epoch="e2")
    results = await asyncio.gather(stores[0].create(one), stores[1].create(other), return_exceptions=True)
    [created] = [result for result in results if result is True]
    [refused] = [result for result in results if isinstance(result, FailedPrecondition)]
    assert created
    assert refused.reason == "VIEW_DIFFERS"
    assert "second" in (await stores[0].registry(fresh=True)).views


async def test_a_view_that_another_process_just_dropped_is_created_again(stores: list[QdrantStore]) -> None:
    """What a process remembers of the registry is a second old: it must not take a view for created or served."""
    second = replace(VIEW, name="second")
    indexes = [Index(store) for store in stores]
    await indexes[0].create_view(second)
    await stores[1].registry(fresh=True)
    await indexes[0].drop_view("second")
    assert await indexes[1].create_view(second)
    await indexes[1].serve_view("second")
    await stores[0].registry(fresh=True)
    await indexes[1].serve_view("main")
    assert await indexes[0].serve_view("second") == "main"
    assert (await stores[1].registry(fresh=True)).serving == "second"


async def test_a_view_that_another_process_just_created_is_found_at_once(stores: list[QdrantStore]) -> None:
    second = replace(VIEW, name="second")
    indexes = [Index(store) for store in stores]
    await stores[1].registry(fresh=True)
    await indexes[0].create_view(second)
    await indexes[1].upsert("second", "e1", [paper(1)], [])
    [points, _] = await indexes[0].read_points("second", ["p00001"], [])
    assert len(points) == 1


async def test_limits_of_an_earlier_release_are_replaced_at_start(stores: list[QdrantStore], server: Server) -> None:
    client = server.client()
    name = stores[0].collection(VIEW.name, Kind.PAPERS.value)
    await client.update_collection(name, strict_mode_config=models.StrictModeConfig(enabled=True, max_query_limit=8000))
    again = QdrantStore(server.client, prefix=name.removesuffix("-main-papers"))
    await again.open()
    strict = (await client.get_collection(name)).config.strict_mode_config
    assert strict is not None
    assert strict.max_query_limit == MOST_HITS
    await again.close()
    await client.close()


async def test_a_lost_collection_is_not_found(stores: list[QdrantStore]) -> None:
    index = Index(stores[0])
    await stores[0].registry(fresh=True)
    await stores[1].drop(VIEW.name)
    with pytest.raises(NotFound):
        await index.upsert("main", "e1", [paper(1)], [])


@pytest.mark.parametrize("calls", range(1, 21))
async def test_a_process_that_dies_in_the_middle_of_creating_a_view(wire: QdrantWire, calls: int) -> None:
    """The next process that opens the store finishes the view; otherwise whoever creates it again does."""
    written, counted = ("Create", "CreateFieldIndex", "Update"), 0

    async def die(name: str, request: Any) -> None:
        nonlocal counted
        counted += name in written
        if counted > calls:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "as if the process had ended before this call")

    store = QdrantStore(wire.client, prefix="x")
    await store.open()
    wire.before = die
    with suppress(Unavailable):
        await store.create(VIEW)
    wire.before = None
    await store.close()
    again = QdrantStore(wire.client, prefix="x")
    await again.open()
    if not (await again.registry()).views:
        assert await again.create(VIEW) == (calls <= 2)
    assert (await again.registry()).views == {"main": VIEW}
    for layout in layouts(VIEW):
        described = await wire_client(again).get_collection(again.collection("main", layout.part))
        assert described.payload_schema.keys() == layout.indexes.keys()
        assert described.config.strict_mode_config is not None
        assert described.config.strict_mode_config.enabled
    await again.close()


def wire_client(store: QdrantStore) -> AsyncQdrantClient:
    return store._client


async def test_a_restore_gives_the_server_its_key(wire: QdrantWire) -> None:
    for key, works in (("", False), ("secret", True)):
        store = QdrantStore(wire.client, api_key=key)
        await store.open()
        await store.create(VIEW)
        taken = await store.snapshot(VIEW)
        locations = {name: f"{wire.url}/collections/{name}/snapshots/{file}" for name, file in taken.items()}
        if works:
            await store.restore(locations)
        else:
            with pytest.raises(FailedPrecondition, match="401"):
                await store.restore(locations)
        await store.close()


@pytest.mark.parametrize(
    ("version", "opens"),
    [("1.16.3", False), ("0.11.1", False), ("1.17.0", True), ("1.18.3", True), ("1.20.0-dev", True), ("2.0.0", True)],
)
async def test_servers_from_1_17_on_are_supported(version: str, opens: bool) -> None:
    wire = QdrantWire(version).start()
    store = QdrantStore(wire.client)
    if opens:
        await store.open()
    else:
        with pytest.raises(FailedPrecondition, match=rf"Qdrant {version} is too old, 1.17 or later is needed"):
            await store.open()
    await store.close()
    wire.close()
