"""What several processes make of one Qdrant server, in the client's local mode."""

import asyncio
from typing import Any

import grpc
import httpx
import pytest
from qdrant_client import AsyncQdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from citewell.index import following, qdrant_points
from citewell.index.hybrid import named
from citewell.index.index import MAX_LIMIT, Index
from citewell.index.points import HYBRID, point_id
from citewell.index.qdrant_layout import STRICT
from citewell.index.qdrant_points import ChangeLog, ask
from citewell.index.qdrant_server import QdrantStore
from citewell.index.queries import Search
from citewell.index.store import Changes, ChangesForgottenError, Kind, Nearest
from citewell.runtime import deadlines
from citewell.runtime.errors import FailedPrecondition, Unavailable
from tests.memory_folder import memory_folder
from tests.store_world import (
    LOCAL_MODE,
    VIEW,
    Lasting,
    ids,
    loaded,
    paper,
    qdrant_local,
    qdrant_local_flat,
    vector,
    write,
)

pytestmark = LOCAL_MODE


async def test_a_server_that_is_gone_is_a_clear_error() -> None:
    store = QdrantStore(
        lambda: AsyncQdrantClient(url="http://127.0.0.1:1", grpc_port=1, prefer_grpc=True, check_compatibility=False)
    )
    with deadlines.within(5), pytest.raises(Unavailable, match="the store does not answer"):
        await store.open()
    await store.close()


async def test_a_prefix_does_not_see_the_views_of_a_longer_one() -> None:
    client = Lasting(":memory:")
    short, long = (QdrantStore(lambda: client, prefix=prefix) for prefix in ("x", "x-staging"))
    for store in (short, long):
        await store.open()
    await long.create(VIEW)
    await short.open()
    assert not (await short.registry()).views
    assert list((await long.registry()).views) == [VIEW.name]


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "Wrong input: limit is 9000"


async def test_a_refusal_of_the_server_is_no_outage() -> None:
    async def refused(error: Exception) -> None:
        raise error

    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED):
        with pytest.raises(FailedPrecondition, match=rf"refuses.*{code.name}.*limit is 9000"):
            await ask(refused(Refusal(code)))
    with pytest.raises(FailedPrecondition, match=r"refuses.*bad key"):
        await ask(refused(UnexpectedResponse(401, "Unauthorized", b"bad key", httpx.Headers())))
    with pytest.raises(Unavailable):
        await ask(refused(Refusal(grpc.StatusCode.UNAVAILABLE)))
    with pytest.raises(Unavailable):
        await ask(refused(UnexpectedResponse(503, "Service Unavailable", b"", httpx.Headers())))


async def test_a_change_number_goes_to_one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_folder() as folder:
        store = qdrant_local(folder)
        await store.open()
        await store.create(VIEW)
        client = Lasting.opened[folder]
        slow, fast = (ChangeLog(client, "citewell-main-changes") for _ in range(2))
        for number in range(3):
            await fast.append(Kind.PAPERS, [point_id(f"fast {number}")])

        async def outdated() -> int:
            return 0  # as read before the other's three entries

        with monkeypatch.context() as patch:
            patch.setattr(slow, "number", outdated)
            await slow.append(Kind.PAPERS, [point_id("slow")])
        assert await slow.number() == await fast.number() == 4
        assert (await fast.since(3, Kind.PAPERS)).ids == {point_id("slow")}
        assert len((await slow.since(0, Kind.PAPERS)).ids) == 4
        assert await slow.since(0, Kind.SPANS) == Changes(4, frozenset())


async def test_a_write_that_two_readers_of_the_change_log_see_at_once_is_no_restore() -> None:
    with memory_folder() as folder:
        store = qdrant_local(folder)
        await store.open()
        await store.create(VIEW)
        client = Lasting.opened[folder]
        reader, writer = (ChangeLog(client, "citewell-main-changes") for _ in range(2))
        await writer.append(Kind.PAPERS, [point_id("a")])
        assert await reader.number() == 1
        await writer.append(Kind.PAPERS, [point_id("b")])
        entries = reader._entries

        async def over_a_network(*args: object) -> list[dict[str, object]]:
            found = await entries(*args)  # type: ignore[arg-type]
            await asyncio.sleep(0)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_entries", over_a_network)
            assert await asyncio.gather(reader.number(), reader.number()) == [2, 2]
            assert reader.lives == 0
            await client.delete("citewell-main-changes", [2])  # as a restore does
            assert await asyncio.gather(reader.number(), reader.number()) == [1, 1]
        assert reader.lives == 1
        await store.close()


async def test_the_change_log_stays_small_and_copies_that_are_behind_load_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(qdrant_points, "KEPT_ENTRIES", 20)
    monkeypatch.setattr(qdrant_points, "DELETE_EVERY", 5)
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, behind = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(60):
            await write(index, paper(number))
        client = Lasting.opened[folder]
        assert (await client.count("citewell-main-changes")).count <= 25
        with pytest.raises(ChangesForgottenError):
            await plain.points(VIEW, Kind.PAPERS).changes(3)
        assert len(await ids(behind, vector(0))) == 60  # answered by the store while the copy is loaded again
        await loaded(copied, VIEW)
        found = await behind.search(Search(100, vector(0)))
        assert (found.engine, len(found.papers)) == ("faiss-flat", 60)
        await copied.close()


async def test_a_copy_that_is_far_behind_reads_a_few_changes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant_points, "ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr(following, "_PAGE", 4)
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, behind = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        read: list[int] = []
        points = plain.points(VIEW, Kind.PAPERS)
        reading = type(points).read

        async def counted(self: Any, ids: Any, vectors: Any = ()) -> Any:
            read.append(len(ids))
            return await reading(self, ids, vectors)

        for start in range(0, 50, 5):
            await write(index, *(paper(number) for number in range(start, start + 5)))
        changes = await points.changes(0)
        assert (changes.number, len(changes.ids), changes.more) == (3, 15, True)
        monkeypatch.setattr(type(points), "read", counted)
        found = await behind.search(Search(100, vector(0)))
        assert (found.engine, len(found.papers)) == ("faiss-flat", 50)
        assert max(read[:-1]) == 4  # the last call reads the answer
        await copied.close()


@pytest.mark.parametrize("told_first", [False, True])
async def test_a_copy_notices_that_the_store_was_restored(told_first: bool) -> None:
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, survivor = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(5):
            await write(survivor, paper(number))
        # The state after a restore: an earlier log, and another write with a number that the copy has already seen.
        client = Lasting.opened[folder]
        await client.delete("citewell-main-changes", [3, 4, 5])
        restored = qdrant_local(folder)
        await restored.open()
        for number in range(5, 8):
            await write(Index(restored), paper(number))
        if told_first:  # whoever asks first, the copy hears of it
            assert (await survivor.stats()).papers == 8
        assert len(await ids(survivor, vector(0))) == 8
        await loaded(copied, VIEW)
        found = await survivor.search(Search(100, vector(0)))
        assert (found.engine, len(found.papers)) == ("faiss-flat", 8)
        await copied.close()


async def test_papers_that_a_restore_took_away_take_no_places_in_answers() -> None:
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, survivor = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(6):
            await write(survivor, paper(number))
        client = Lasting.opened[folder]
        await client.delete("citewell-main-changes", [1, 2, 3, 4, 5, 6])
        await client.delete("citewell-main-papers", [str(point_id(f"paper-{number:03}")) for number in range(5)])
        await copied.check()
        await loaded(copied, VIEW)
        found = await survivor.search(Search(1, vector(0)))  # the nearest to which were the five
        assert (found.engine, [each.paper.id for each in found.papers]) == ("faiss-flat", ["paper-005"])
        await copied.close()


def test_the_largest_search_by_words_stays_within_what_the_server_is_told_to_allow() -> None:
    for limit in (MAX_LIMIT, MAX_LIMIT + 4, 2 * MAX_LIMIT):
        assert named(Nearest(HYBRID, None, limit)) <= (STRICT.max_query_limit or 0)
