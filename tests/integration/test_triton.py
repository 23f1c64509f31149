"""DAVINCI on a real Triton: its models' lives, and a reranker that outlives the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc.aio import InferenceServerClient

from citewell.reranker.model_files import ModelFolder, read_model_folder
from citewell.reranker.pairs import PairBatch
from citewell.reranker.server import RerankerServer
from citewell.reranker.settings import Backend, RerankerSettings
from citewell.reranker.triton import TritonScorer
from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import CitewellError, FailedPrecondition, Unavailable
from citewell.runtime.server import ServiceProcess
from tests.contract.test_pair_scorer import batch_of
from tests.servers.proxy import Proxy
from tests.servers.triton import TritonServer
from tests.tiny_models import write_tiny_davinci

SERVICE = "citewell.reranker.v1.RerankerService"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return read_model_folder(write_tiny_davinci(tmp_path_factory.mktemp("davinci") / "model"))


@contextlib.asynccontextmanager
async def scorer_of(
    server: TritonServer, model: ModelFolder, name: str = "davinci", version: str = "", **more: Any
) -> AsyncIterator[TritonScorer]:
    scorer = TritonScorer(model, more.pop("address", server.address), name, version, **more)
    try:
        yield scorer
    finally:
        await scorer.close()


@contextlib.asynccontextmanager
async def control(server: TritonServer) -> AsyncIterator[InferenceServerClient]:
    client = InferenceServerClient(server.address)
    try:
        yield client
    finally:
        await client.close()


async def test_a_model_is_loaded_used_and_unloaded(triton_server: TritonServer, model: ModelFolder) -> None:
    triton_server.add_version(1, model="another")
    async with control(triton_server) as client, scorer_of(triton_server, model, "another") as scorer:
        with pytest.raises(Unavailable, match="does not have another ready"):
            await scorer.check()
        await client.load_model("another")
        await scorer.check()  # loading includes the warm-up of config.pbtxt
        assert np.isfinite(await scorer.score(*batch_of([20, 9]))).all()
        await client.unload_model("another")
        await until_raises(scorer.check)
        with pytest.raises(Unavailable):
            await scorer.score(*batch_of([20, 9]))


async def test_two_versions_at_once(triton_server: TritonServer, model: ModelFolder) -> None:
    for version in (1, 2):
        triton_server.add_version(version, seed=version, model="twice")
    async with (
        control(triton_server) as client,
        scorer_of(triton_server, model, "twice", "1") as old,
        scorer_of(triton_server, model, "twice", "2") as new,
        scorer_of(triton_server, model, "twice") as newest,
    ):
        await client.load_model("twice")
        first, second, unnamed = await asyncio.gather(*(one.score(*batch_of([20, 9])) for one in (old, new, newest)))
        assert np.abs(first - second).max() > 1e-2
        np.testing.assert_allclose(unnamed, second, atol=1e-5)
        assert len({old.info.hash, new.info.hash}) == 2


async def test_an_unknown_model_and_an_unknown_version(triton_server: TritonServer, model: ModelFolder) -> None:
    for name, version in [("nobody", ""), ("davinci", "9")]:
        async with scorer_of(triton_server, model, name, version) as scorer:
            with pytest.raises(Unavailable, match=name):
                await scorer.score(*batch_of([20]))
            with pytest.raises(Unavailable):
                await scorer.check()


async def test_wrong_shapes_are_refused_and_disturb_nobody(triton_server: TritonServer, model: ModelFolder) -> None:
    async with scorer_of(triton_server, model) as scorer:
        batch, priors = batch_of([20, 9])
        wrong = PairBatch(batch.input_ids, batch.attention_mask[:1], batch.token_type_ids)
        refused, fine = await asyncio.gather(
            scorer.score(wrong, priors), scorer.score(batch, priors), return_exceptions=True
        )
        assert isinstance(refused, FailedPrecondition)
        assert "attention_mask" in refused.message
        assert isinstance(fine, np.ndarray)


async def test_a_server_that_does_not_answer_is_given_up_in_time(
    triton_server: TritonServer, model: ModelFolder
) -> None:
    with Proxy(triton_server.grpc_port) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        async with scorer_of(triton_server, model, address=address, timeout_seconds=3.0) as scorer:
            await scorer.score(*batch_of([20]))
            proxy.blackhole()
            with pytest.raises(CitewellError) as caught:
                await asyncio.wait_for(scorer.score(*batch_of([20])), 30)
            assert caught.value.reason in ("DEADLINE_EXCEEDED", "TRITON_UNAVAILABLE")
            with pytest.raises(Unavailable):
                await scorer.check()
            proxy.restore()
            await until_fine(scorer.check)
            assert np.isfinite(await scorer.score(*batch_of([20]))).all()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[TritonServer]:
    server = TritonServer(tmp_path)
    server.add_version(1)
    try:
        yield server.start()
    finally:
        server.kill()


async def test_the_service_degrades_while_the_server_is_gone_and_recovers_by_itself(
    own_server: TritonServer, model: ModelFolder
) -> None:
    settings = RerankerSettings(
        backend=Backend.TRITON, model=model.path, triton_address=own_server.address, triton_timeout_seconds=3
    )
    process = ServiceProcess("reranker", settings, RerankerServer(settings))
    task = asyncio.create_task(process.run())
    await asyncio.wait_for(process.bound.wait(), 10)
    channel = open_channel(f"127.0.0.1:{process.port}")
    stub: Any = RerankerServiceStub(channel)
    request = messages.RerankRequest(
        context="see TARGETCIT for it",
        allow_partial=True,
        candidates=[messages.RerankCandidate(paper_id=f"p{i}", revision=1, title="a b", rank=i) for i in range(1, 6)],
    )
    try:
        await until_fine(lambda: require_serving(channel, SERVICE))
        before = await stub.Rerank(request, timeout=10)
        assert (before.scored, before.partial_reason) == (5, "")

        own_server.kill()
        gone = await stub.Rerank(request, timeout=10)
        assert (gone.scored, gone.partial_reason) == (0, "UNAVAILABLE")
        assert [paper.paper_id for paper in gone.papers] == ["p1", "p2", "p3", "p4", "p5"]
        strict = messages.RerankRequest()
        strict.CopyFrom(request)
        strict.allow_partial = False
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Rerank(strict, timeout=3)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        await require_serving(channel, SERVICE)

        await asyncio.to_thread(own_server.start)
        after = messages.RerankResponse()

        async def scored_again() -> None:
            nonlocal after
            after = await stub.Rerank(request, timeout=10)
            if after.partial_reason:
                raise Unavailable(after.partial_reason, stage="rerank")

        await until_fine(scored_again, 30)
        assert [(paper.paper_id, paper.rank) for paper in after.papers] == [
            (paper.paper_id, paper.rank) for paper in before.papers
        ]
    finally:
        await channel.close()
        process.stop()
        await asyncio.wait_for(task, 20)


async def until_fine(call: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                await call()
            except CitewellError:
                await asyncio.sleep(0.05)
            else:
                return


async def until_raises(call: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                await call()
            except CitewellError:
                return
            await asyncio.sleep(0.05)
