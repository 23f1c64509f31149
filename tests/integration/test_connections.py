"""How channels connect: to a slow server, and to one that is starting again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from citewell.recommender.index_client import IndexClient
from citewell.recommender.ports import EvidenceCall, SearchCall
from citewell.reranker.v1 import reranker_pb2, reranker_pb2_grpc
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import Unavailable
from citewell.runtime.settings import ServiceSettings
from citewell.scholarly.papers import SearchFilter
from tests.integration.test_index_service import connected, fill, numbers, serving
from tests.integration.test_service_process import running
from tests.servers.processes import free_ports
from tests.servers.proxy import Proxy


async def test_a_server_that_accepts_600_ms_late_is_reached_by_every_call() -> None:
    async with running() as (_, process):
        with Proxy(process.port) as slow:
            slow.delay(0.6)
            for _ in range(5):
                async with open_channel(f"127.0.0.1:{slow.port}") as channel:
                    stub = reranker_pb2_grpc.RerankerServiceStub(channel)
                    with deadlines.within(10):
                        answer = await invoke(stub.Rerank, reranker_pb2.RerankRequest(), "rerank")
                    assert answer.scored == 1


async def test_a_search_waits_out_a_restart_of_the_index_and_evidence_does_not(tmp_path: Path) -> None:
    [port] = free_ports(1)
    search = SearchCall(numbers(3), 5, SearchFilter())
    evidence = EvidenceCall(("p0000",), numbers(3), 2)
    async with open_channel(f"localhost:{port}") as channel:
        index = IndexClient(channel)
        async with serving(tmp_path, port=port):
            async with connected(port) as stub:
                await fill(stub)
            before = await index.search(search, 20)
        with deadlines.within(30):
            with pytest.raises(Unavailable):  # an answer can do without it, so it fails fast
                await asyncio.wait_for(index.evidence(evidence, 20), 10)
            waiting = [
                asyncio.create_task(index.search(search, 20)),
                asyncio.create_task(index.get(["p0003"], False, 20)),
            ]
            done, _ = await asyncio.wait(waiting, timeout=3)  # the retries of the service config end within a second
            assert not done
            async with serving(tmp_path, port=port):
                found, papers = await asyncio.gather(*waiting)
        assert [hit.paper.id for hit in found.hits] == [hit.paper.id for hit in before.hits]
        assert list(papers) == ["p0003"]


async def test_callers_of_two_servers_lose_no_call_while_each_restarts_and_none_reaches_one_that_warms() -> None:
    ports = free_ports(2)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    answered, over = 0, asyncio.Event()

    async def ask(stub: reranker_pb2_grpc.RerankerServiceStub) -> None:
        nonlocal answered
        while not over.is_set():
            with deadlines.within(10):
                await invoke(stub.Rerank, reranker_pb2.RerankRequest(), "rerank")
            answered += 1

    async def go_on(enough: Callable[[], bool]) -> None:
        while not enough():
            assert not any(caller.done() for caller in callers), "a call failed"
            await asyncio.sleep(0.005)

    async with asyncio.timeout(60), AsyncExitStack() as ends:
        servers = [AsyncExitStack(), AsyncExitStack()]
        for server, port in zip(servers, ports, strict=True):
            await ends.enter_async_context(server)
            await server.enter_async_context(running(ServiceSettings(port=port)))
        channel = await ends.enter_async_context(open_channel(f"ipv4:{addresses}"))
        callers = [asyncio.create_task(ask(reranker_pb2_grpc.RerankerServiceStub(channel))) for _ in range(8)]
        for server, port in zip(servers, ports, strict=True):
            await go_on(lambda least=answered + 100: answered >= least)
            await server.aclose()
            service, _ = await server.enter_async_context(running(ServiceSettings(port=port), warm=False))
            await go_on(lambda least=answered + 300: answered >= least)
            assert not service.calls, "it still warms"
            service.warm.set()
            await go_on(lambda calls=service.calls: len(calls) > 10)
        over.set()
        await asyncio.gather(*callers)
