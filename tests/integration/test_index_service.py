"""The index as its callers meet it: a real process, real channels, restarts and kill -9."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.index.points import SCHEMA_VERSION
from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.index.v1 import index_pb2 as pb
from citewell.index.v1 import index_pb2_grpc
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import CitewellError, FailedPrecondition, InvalidField, Overloaded
from citewell.runtime.server import HEALTH_INTERVAL_SECONDS, ServiceProcess
from citewell.types.v1 import paper_pb2, terms_pb2
from tests.memory_folder import memory_folder
from tests.servers.processes import end, free_ports

DIMENSION = 16


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made


def contents(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@contextlib.asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[ServiceProcess]:
    told = IndexSettings(**({"folder": folder, "min_free_megabytes": 0} | settings))
    process = ServiceProcess("index", told, IndexServer(told))
    task = asyncio.create_task(process.run())
    bound = asyncio.create_task(process.bound.wait())
    await asyncio.wait({task, bound}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    try:
        yield process
    finally:
        process.stop()
        await asyncio.wait_for(task, 20)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Any]:
    channel = open_channel(f"localhost:{port}")
    try:
        yield index_pb2_grpc.IndexServiceStub(channel)
    finally:
        await channel.close()


async def call(method: Any, request: Any, seconds: float = 20) -> Any:
    with deadlines.within(seconds):
        return await invoke(method, request, "index", wait_for_ready=True)


def numbers(seed: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32).tolist()  # type: ignore[no-any-return]


def stored(vector: Sequence[float]) -> bytes:
    """As a point's vector travels."""
    return np.array(vector, "<f4").tobytes()


def paper(number: int, version: int = 1, **changes: Any) -> pb.PaperPoint:
    said = paper_pb2.Paper(
        id=f"p{number:04}",
        title=f"Lantern {number}",
        abstract="Why lanterns drift.",
        venue="Tides",
        published=paper_pb2.PartialDate(year=1990 + number % 30),
        external_ids=[paper_pb2.ExternalId(scheme="doi", value=f"10.1/{number}")],
    )
    return pb.PaperPoint(paper=said, version=version, **({"profile": stored(numbers(number))} | changes))


def span(citing: int, cited: int) -> pb.SpanPoint:
    return pb.SpanPoint(
        key=f"{citing}>{cited}",
        citing_id=f"p{citing:04}",
        cited_id=f"p{cited:04}",
        text=f"{citing} of {cited}",
        vector=stored(numbers(citing)),
        published=paper_pb2.PartialDate(year=1990 + citing),
        version=1,
    )


async def create_view(stub: Any) -> None:
    created = pb.CreateViewRequest(index_view="main", epoch="e1", model_hash="m1", dimension=DIMENSION)
    assert (await call(stub.CreateView, created)).created
    await call(stub.ServeView, pb.ServeViewRequest(index_view="main"))


async def fill(stub: Any, count: int = 50) -> None:
    await create_view(stub)
    papers = [paper(number) for number in range(count)]
    spans = [span(citing, 0) for citing in range(10, 20)]
    await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=papers, spans=spans))


async def test_every_call_answers(folder: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await fill(stub)
        found = await call(stub.Search, pb.SearchRequest(vector=numbers(7), limit=5, model_hash="m1"))
        assert [hit.rank for hit in found.papers] == [1, 2, 3, 4, 5]
        assert (found.papers[0].paper.id, found.exact, found.index_view) == ("p0007", True, "main")
        assert found.papers[0].paper.abstract == ""
        full = await call(stub.Search, pb.SearchRequest(vector=numbers(7), limit=1, view=paper_pb2.PAPER_VIEW_FULL))
        assert full.papers[0].paper.abstract == "Why lanterns drift."
        assert full.papers[0].paper.external_ids[0].value == "10.1/7"
        before = paper_pb2.SearchFilter(published_before=paper_pb2.PartialDate(year=1993), excluded_ids=["p0000"])
        found = await call(stub.Search, pb.SearchRequest(vector=numbers(7), limit=50, filter=before))
        assert {hit.paper.id for hit in found.papers} == {"p0001", "p0002", "p0030", "p0031", "p0032"}
        said = await call(
            stub.SearchEvidence, pb.SearchEvidenceRequest(cited_ids=["p0000"], vector=numbers(12), limit_per_paper=2)
        )
        assert said.papers[0].evidence[0].text == "12 of 0"
        assert said.papers[0].evidence[0].score == pytest.approx(1, abs=1e-5)
        got = await call(stub.GetPapers, pb.GetPapersRequest(ids=["p0003", "who"]))
        assert ([paper.id for paper in got.papers], got.missing_ids) == (["p0003"], ["who"])
        listed = await call(stub.ListPapers, pb.ListPapersRequest(page_size=30))
        rest = await call(stub.ListPapers, pb.ListPapersRequest(page_size=30, page_token=listed.next_page_token))
        assert (len(listed.papers), len(rest.papers), rest.next_page_token) == (30, 20, "")
        stored = await call(stub.ReadPoints, pb.ReadPointsRequest(paper_ids=["p0001"], span_keys=["11>0"]))
        assert (stored.papers[0].version, stored.spans[0].citing_id) == (1, "p0011")
        stats = await call(stub.Stats, pb.StatsRequest())
        assert (stats.papers, stats.spans, stats.epoch, stats.model_hash) == (50, 10, "e1", "m1")
        assert stats.disk_bytes > 0
        info = await call(stub.Info, pb.InfoRequest())
        assert [(view.name, view.serving) for view in info.views] == [("main", True)]
        assert (info.views[0].stored_papers, info.views[0].stored_spans) == (50, 10)


async def test_words_are_searched_over_the_wire(folder: Path) -> None:
    terms = terms_pb2.Terms(ids=[3, 9], values=[2.0, 1.0])
    lexical = terms_pb2.LexicalQuery(
        terms=terms_pb2.Terms(ids=[3, 8], values=[0.5, 0.5]), weight=3, k1=1.2, b=0.4, mean_length=3
    )
    async with serving(folder) as process, connected(process.port) as stub:
        await fill(stub)
        said = span(30, 7)
        said.text, said.span_offset, said.span_length = "as lanterns drift", 3, 8
        said.terms.CopyFrom(terms)
        said.span_terms.CopyFrom(terms)
        points = [paper(7, 2, terms=terms, length=3)]
        await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=points, spans=[said]))
        asked = {"lexical": lexical, "limit": 3, "matched_terms": 5}
        hybrid = await call(stub.Search, pb.SearchRequest(field=pb.SEARCH_FIELD_HYBRID, vector=numbers(7), **asked))
        best = hybrid.papers[0]
        assert best.paper.id == "p0007"
        assert best.lexical_score == pytest.approx(0.5 * 2 / (2 + 1.2))
        assert best.score == pytest.approx(best.profile_score + 3 * best.lexical_score)
        assert (list(best.matched.ids), list(best.matched.values)) == ([3], [pytest.approx(best.lexical_score)])
        by_words = await call(stub.Search, pb.SearchRequest(field=pb.SEARCH_FIELD_LEXICAL, **asked))
        assert [hit.paper.id for hit in by_words.papers] == ["p0007"]
        evidence = await call(
            stub.SearchEvidence,
            pb.SearchEvidenceRequest(cited_ids=["p0007"], vector=numbers(30), limit_per_paper=1, lexical=lexical),
        )
        [piece] = evidence.papers[0].evidence
        assert (piece.span_offset, piece.span_length, piece.score > 1.5) == (3, 8, True)
        found = await call(stub.SearchSpans, pb.SearchSpansRequest(terms=terms, vector=numbers(30)))
        assert [span.text for span in found.spans if span.okapi_rank] == ["lanterns"]
        first = found.spans[0]
        assert (first.okapi_rank, first.plus_rank, first.cosine_rank) == (1, 1, 1)
        assert (first.papers[0].paper_id, first.papers[0].support, first.papers[0].citing_id) == ("p0007", 1, "p0030")
        for field, request in (
            ("sparse", pb.SearchRequest(vector=numbers(1), limit=1, sparse=pb.SparseVector(indices=[1], values=[1]))),
            ("lexical", pb.SearchRequest(vector=numbers(1), limit=1, field=pb.SEARCH_FIELD_HYBRID)),
        ):
            with pytest.raises(InvalidField) as refused:
                await call(stub.Search, request)
            assert refused.value.field == field


async def test_wrong_requests_are_told_what_is_wrong(folder: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await fill(stub)
        for field, request in (
            ("vector", pb.SearchRequest(vector=[1.0], limit=5)),
            ("vector", pb.SearchRequest(vector=[float("nan")] * DIMENSION, limit=5)),
            ("limit", pb.SearchRequest(vector=numbers(1), limit=3001)),
            ("field", pb.SearchRequest(vector=numbers(1), limit=1, field=9)),  # type: ignore[arg-type]
            (
                "filter.year_from",
                pb.SearchRequest(
                    vector=numbers(1), limit=1, filter=paper_pb2.SearchFilter(year_from=2001, year_to=2000)
                ),
            ),
        ):
            with pytest.raises(InvalidField) as refused:
                await call(stub.Search, request)
            assert refused.value.field == field
        with pytest.raises(FailedPrecondition, match=r"'m1'.*'m2'"):
            await call(stub.Search, pb.SearchRequest(vector=numbers(1), limit=1, model_hash="m2"))
        with pytest.raises(FailedPrecondition, match=r"'e1'.*'e2'"):
            await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e2", papers=[paper(1)]))


async def test_a_restart_is_waited_for_within_the_deadline(folder: Path) -> None:
    [port] = free_ports(1)
    request = pb.SearchRequest(vector=numbers(3), limit=20)
    async with connected(port) as stub:
        async with serving(folder, port=port):
            await fill(stub)
            before = await call(stub.Search, request)
        asked = asyncio.create_task(call(stub.Search, request))  # nobody listens now
        async with serving(folder, port=port):
            after = await asked
    # Scores come from the store or from its copy in memory, whichever is ready: the last digit may differ.
    assert [each.paper for each in after.papers] == [each.paper for each in before.papers]
    np.testing.assert_allclose([each.score for each in after.papers], [each.score for each in before.papers], rtol=1e-5)


async def test_a_full_disk_refuses_writes_and_keeps_answering(folder: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await fill(stub)
    async with (
        serving(folder, min_free_megabytes=1 << 40) as process,
        connected(process.port) as stub,
        open_channel(f"localhost:{process.port}") as channel,
    ):
        with pytest.raises(Overloaded, match="must stay free") as refused:
            await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=[paper(1, version=2)]))
        assert refused.value.reason == "STORAGE_FULL"
        await asyncio.sleep(2 * HEALTH_INTERVAL_SECONDS)  # long enough for a look at the full disk
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert len((await call(stub.Search, pb.SearchRequest(vector=numbers(1), limit=50))).papers) == 50


class Child:
    """`python -m citewell.index` as an operator starts it, on a port of its own."""

    def __init__(self, folder: Path, log: Path, **environment: str) -> None:
        [self.port] = free_ports(1)
        self._log = log
        settings = {
            "CITEWELL_INDEX__FOLDER": str(folder),
            "CITEWELL_INDEX__PORT": str(self.port),
            "CITEWELL_INDEX__MIN_FREE_MEGABYTES": "0",
        }
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "citewell.index"], env=os.environ | settings | environment, stderr=file
            )

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 20)

    def said(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        end(self.process, self._log)


async def test_kill_9_loses_nothing_that_was_acknowledged(folder: Path, tmp_path: Path) -> None:
    acknowledged = 0
    with Child(folder, tmp_path / "log") as child:
        async with connected(child.port) as stub:
            await create_view(stub)

            async def feed() -> None:
                nonlocal acknowledged
                for start in range(0, 100_000, 20):
                    batch = [paper(number) for number in range(start, start + 20)]
                    await call(stub.Upsert, pb.UpsertRequest(index_view="main", epoch="e1", papers=batch), 5)
                    acknowledged = start + 20
                    if acknowledged == 400:
                        enough.set()

            enough = asyncio.Event()
            feeding = asyncio.create_task(feed())
            await asyncio.wait_for(enough.wait(), 60)
            child.process.send_signal(signal.SIGKILL)
            with pytest.raises(CitewellError):
                await feeding
            assert await child.ended() == -signal.SIGKILL
    async with serving(folder) as process, connected(process.port) as stub:
        stats = await call(stub.Stats, pb.StatsRequest())
        assert stats.papers >= acknowledged
        for start in range(0, acknowledged, 100):
            ids = [f"p{number:04}" for number in range(start, start + 100)]
            stored = await call(stub.ReadPoints, pb.ReadPointsRequest(paper_ids=ids))
            assert [point.paper.id for point in stored.papers] == ids
            assert all(len(point.profile) == 4 * DIMENSION for point in stored.papers)


async def test_a_write_whose_answer_was_lost_can_be_sent_again(folder: Path, tmp_path: Path) -> None:
    request = pb.UpsertRequest(index_view="main", epoch="e1", papers=[paper(1)], spans=[span(2, 1)])
    with Child(folder, tmp_path / "log", CITEWELL_FAULT_POINT="after-index-write") as child:
        async with connected(child.port) as stub:
            await create_view(stub)
            with pytest.raises(CitewellError):
                await call(stub.Upsert, request, 3)
            assert await child.ended() == -signal.SIGKILL
    async with serving(folder) as process, connected(process.port) as stub:
        change_number = (await call(stub.Stats, pb.StatsRequest())).change_number
        assert (await call(stub.Upsert, request)).stale == 0
        stats = await call(stub.Stats, pb.StatsRequest())
        assert (stats.papers, stats.spans, stats.change_number) == (1, 1, change_number)


async def test_a_second_process_says_who_owns_the_store(folder: Path, tmp_path: Path) -> None:
    async with serving(folder):
        with Child(folder, tmp_path / "log", CITEWELL_INDEX__OWNER_WAIT_SECONDS="0.2") as child:
            assert await child.ended() == 1
            assert f"in use by process {os.getpid()}" in child.said()
            assert "Traceback" not in child.said()


async def test_views_of_an_older_schema_make_way_for_new_ones(folder: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await fill(stub)
    registry = folder / "views.json"
    registry.write_text(registry.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 1'))
    async with serving(folder) as process, connected(process.port) as stub:
        assert not (await call(stub.Info, pb.InfoRequest())).views
        assert not (folder / "main").exists()
        await fill(stub)
        assert len((await call(stub.Search, pb.SearchRequest(vector=numbers(7), limit=5))).papers) == 5


async def test_a_store_of_a_later_schema_is_left_alone(folder: Path, tmp_path: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await create_view(stub)
    registry = folder / "views.json"
    registry.write_text(registry.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 7'))
    before = contents(folder)
    with Child(folder, tmp_path / "log") as child:
        assert await child.ended() == 1
        assert f"schema version 7, this program reads {SCHEMA_VERSION}" in child.said()
    assert contents(folder) == before


async def test_a_folder_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    """Such as a home folder that the setting names by mistake."""
    thesis = tmp_path / "home" / "documents" / "thesis.tex"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    with Child(tmp_path / "home", tmp_path / "log") as child:
        assert await child.ended() == 1
        assert "has no views.json, but a folder 'documents': it seems to be no store" in child.said()
    assert thesis.read_text() == "years of work"


async def test_only_what_is_left_of_a_view_is_deleted_at_start(folder: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await create_view(stub)
    (folder / "half-made" / "papers").mkdir(parents=True)
    (folder / "backup" / "main").mkdir(parents=True)
    async with serving(folder) as process, connected(process.port) as stub:
        assert (await call(stub.Info, pb.InfoRequest())).views
        assert not (folder / "half-made").exists()
        assert (folder / "backup" / "main").is_dir()
        assert (folder / "main").is_dir()


async def test_a_store_that_cannot_be_read_is_left_alone(folder: Path, tmp_path: Path) -> None:
    async with serving(folder) as process, connected(process.port) as stub:
        await create_view(stub)
    (folder / "main" / "papers" / "edge_config.json").write_text("no configuration")
    before = contents(folder)
    with Child(folder, tmp_path / "log") as child:
        assert await child.ended() == 1
        assert f"the store {folder} cannot be read" in child.said()
        assert "Traceback" not in child.said()
    assert contents(folder) == before


async def test_health_says_serving_once_the_store_is_open(folder: Path) -> None:
    async with serving(folder) as process:
        channel = open_channel(f"localhost:{process.port}")
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="citewell.index.v1.IndexService"), wait_for_ready=True, timeout=20
        )
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()
        await channel.close()
