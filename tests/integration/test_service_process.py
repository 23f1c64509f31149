"""The runtime's server and channels, with a small service."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from citewell.reranker.v1 import reranker_pb2, reranker_pb2_grpc
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidField,
    Overloaded,
    PermissionDenied,
    Unavailable,
)
from citewell.runtime.health import Check
from citewell.runtime.server import ServiceProcess
from citewell.runtime.settings import ServiceSettings, TlsClient, TlsServer, UnknownSetting

NAME = "citewell.reranker.v1.RerankerService"


class SmallService(reranker_pb2_grpc.RerankerServiceServicer):
    """Behaves as the context of the request says."""

    grpc_services = (NAME,)

    def __init__(self) -> None:
        self.warm, self.healthy, self.release = asyncio.Event(), True, asyncio.Event()
        self.store_is_gone, self.one_at_a_time = False, asyncio.Lock()
        self.calls: list[float] = []
        self.events: list[str] = []
        self.called, self.cancelled = asyncio.Event(), asyncio.Event()
        self.failures = 0

    def register(self, server: grpc.aio.Server) -> None:
        reranker_pb2_grpc.add_RerankerServiceServicer_to_server(self, server)

    async def start(self) -> None:
        await self.warm.wait()

    async def check(self) -> None:
        if not self.healthy:
            raise Internal("the worker has ended")

    def dependencies(self) -> Mapping[str, Check]:
        async def store() -> None:
            if self.store_is_gone:
                raise Unavailable("the store is gone")

        return {"store": store}

    async def stop(self) -> None:
        self.events.append("stopped")

    async def Rerank(self, request: reranker_pb2.RerankRequest, context: Any) -> reranker_pb2.RerankResponse:
        self.calls.append(deadlines.remaining())
        self.called.set()
        match request.context:
            case "field":
                raise InvalidField("query.context", "two markers", "exactly one TARGETCIT")
            case "defect":
                raise KeyError("/secret/path")
            case "busy":
                raise Overloaded("the queue is full", retry_after_seconds=3)
            case "precondition":
                raise FailedPrecondition("another encoder", reason="ENCODER_MISMATCH", stored="a", given="b")
            case "refused":
                raise PermissionDenied("this service may not search", stage="index")
            case "flaky":
                self.failures += 1
                if self.failures < 3:
                    raise Unavailable("not yet")
            case "wait":
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
                self.events.append("answered")
            case "slow":
                async with self.one_at_a_time:
                    await asyncio.sleep(0.05)
            case "trace":
                span = telemetry.trace.get_current_span().get_span_context()
                return reranker_pb2.RerankResponse(model_hash=format(span.trace_id, "032x"))
        return reranker_pb2.RerankResponse(scored=1)

    async def Info(self, request: reranker_pb2.InfoRequest, context: Any) -> reranker_pb2.InfoResponse:
        return reranker_pb2.InfoResponse(version="small")


@contextlib.asynccontextmanager
async def running(
    settings: ServiceSettings | None = None, *, warm: bool = True
) -> AsyncIterator[tuple[SmallService, ServiceProcess]]:
    service = SmallService()
    process = ServiceProcess("small", settings or ServiceSettings(), service)
    if warm:
        service.warm.set()
    task = asyncio.create_task(process.run())
    await asyncio.wait_for(process.bound.wait(), 10)
    try:
        yield service, process
    finally:
        service.release.set()
        process.stop()
        await asyncio.wait_for(task, 20)


@contextlib.asynccontextmanager
async def connected(process: ServiceProcess, tls: TlsClient | None = None) -> AsyncIterator[Any]:
    channel = open_channel(f"localhost:{process.port}", tls)
    try:
        yield reranker_pb2_grpc.RerankerServiceStub(channel)
    finally:
        await channel.close()


def rerank(stub: Any, word: str, seconds: float = 10) -> Any:
    async def call() -> Any:
        with deadlines.within(seconds):
            return await invoke(stub.Rerank, reranker_pb2.RerankRequest(context=word), "rerank", wait_for_ready=True)

    return call()


async def test_errors_cross_the_wire_as_what_they_are() -> None:
    async with running() as (_, process), connected(process) as stub:
        with pytest.raises(InvalidField, match="two markers") as field:
            await rerank(stub, "field")
        assert field.value.field == "query.context"
        with pytest.raises(Overloaded, match="the queue is full") as overloaded:
            await rerank(stub, "busy")
        assert (overloaded.value.reason, overloaded.value.retry_after_seconds) == ("OVERLOADED", 3)
        with pytest.raises(FailedPrecondition) as precondition:
            await rerank(stub, "precondition")
        assert precondition.value.reason == "ENCODER_MISMATCH"
        assert precondition.value.metadata["stored"] == "a"


async def test_a_refusal_of_this_services_credentials_is_not_the_callers_fault() -> None:
    async with running() as (_, process), connected(process) as stub:
        with pytest.raises(Unavailable, match="index refuses this service") as refused:
            await rerank(stub, "refused")
        assert refused.value.reason == "SERVICE_REFUSED"


async def test_a_defect_of_ours_tells_the_caller_nothing_of_the_inside() -> None:
    async with running() as (_, process), connected(process) as stub:
        with pytest.raises(Internal) as caught:
            await rerank(stub, "defect")
        assert "secret" not in str(caught.value)
        assert "KeyError" not in str(caught.value)


async def test_deadlines_are_passed_on_and_calls_without_one_get_the_default() -> None:
    async with running(ServiceSettings(default_deadline_seconds=90)) as (service, process), connected(process) as stub:
        await rerank(stub, "", seconds=30)
        await stub.Rerank(reranker_pb2.RerankRequest())
        assert 20 < service.calls[0] < 30
        assert 80 < service.calls[1] <= 90


async def test_a_call_past_its_deadline_ends_on_both_sides() -> None:
    async with running() as (service, process), connected(process) as stub:
        await rerank(stub, "")
        with pytest.raises(DeadlineExceeded, match="rerank"):
            await rerank(stub, "wait", seconds=0.3)
        await asyncio.wait_for(service.cancelled.wait(), 5)


async def test_cancelling_the_client_cancels_the_handler() -> None:
    async with running() as (service, process), connected(process) as stub:
        call = asyncio.create_task(rerank(stub, "wait"))
        await asyncio.wait_for(service.called.wait(), 5)
        call.cancel()
        await asyncio.wait_for(service.cancelled.wait(), 5)


async def test_the_service_config_retries_what_was_unavailable() -> None:
    async with running() as (service, process), connected(process) as stub:
        assert (await rerank(stub, "flaky")).scored == 1
        assert service.failures == 3


async def test_one_trace_goes_through() -> None:
    telemetry.trace.set_tracer_provider(telemetry.TracerProvider())
    async with running() as (_, process), connected(process) as stub:
        with telemetry.span("client") as outer:
            answer = await rerank(stub, "trace")
        assert answer.model_hash == format(outer.get_span_context().trace_id, "032x")


async def test_reflection_lists_the_service() -> None:
    async with running() as (_, process):
        channel = open_channel(f"localhost:{process.port}")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request]), wait_for_ready=True, timeout=10):
            assert NAME in [listed.name for listed in answer.list_services_response.service]
        await channel.close()


async def test_a_stop_lets_calls_in_flight_finish_and_then_closes() -> None:
    async with running() as (service, process), connected(process) as stub:
        call = asyncio.create_task(rerank(stub, "wait"))
        await asyncio.wait_for(service.called.wait(), 5)
        process.stop()
        service.release.set()
        assert (await call).scored == 1
    assert service.events == ["answered", "stopped"]


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = ServiceProcess("small", ServiceSettings(port=port), SmallService())
        with pytest.raises(SystemExit, match=f"port {port} on 127.0.0.1 cannot be used"):
            await process.run()


def certificates(folder: Path, *names: str) -> None:
    """Writes ca.pem, and for each name a certificate and its key."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in names:
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))


async def test_tls_lets_in_who_shows_a_certificate_and_nobody_else(tmp_path: Path) -> None:
    certificates(tmp_path, "localhost", "client")
    server = TlsServer(
        certificate=tmp_path / "localhost.pem", key=tmp_path / "localhost.key", client_ca=tmp_path / "ca.pem"
    )
    client = TlsClient(
        enabled=True, ca=tmp_path / "ca.pem", certificate=tmp_path / "client.pem", key=tmp_path / "client.key"
    )
    async with running(ServiceSettings(tls=server)) as (_, process):
        async with connected(process, client) as stub:
            assert (await rerank(stub, "")).scored == 1
        for stranger in (None, TlsClient(enabled=True, ca=tmp_path / "ca.pem")):
            async with connected(process, stranger) as stub:
                with pytest.raises((Unavailable, DeadlineExceeded)):
                    await rerank(stub, "", seconds=1)


async def test_a_certificate_of_another_name_is_accepted_only_with_that_authority(tmp_path: Path) -> None:
    certificates(tmp_path, "index.example")
    server = TlsServer(certificate=tmp_path / "index.example.pem", key=tmp_path / "index.example.key")
    async with running(ServiceSettings(tls=server)) as (_, process):
        named = TlsClient(enabled=True, ca=tmp_path / "ca.pem", authority="index.example")
        async with connected(process, named) as stub:
            assert (await rerank(stub, "")).scored == 1
        async with connected(process, TlsClient(enabled=True, ca=tmp_path / "ca.pem")) as stub:
            with pytest.raises((Unavailable, DeadlineExceeded)):
                await rerank(stub, "", seconds=1)


async def test_a_file_that_cannot_be_used_for_tls_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(UnknownSetting, match=r"client_tls.ca is '.*missing.pem', which cannot be read: No such file"):
        open_channel("localhost:1", TlsClient(enabled=True, ca=tmp_path / "missing.pem"))
    with pytest.raises(UnknownSetting, match=r"client_tls.ca is '.*empty.pem', which is not a PEM file"):
        open_channel("localhost:1", TlsClient(enabled=True, ca=tmp_path / "empty.pem"))
    lost = TlsServer(certificate=tmp_path / "lost.pem", key=tmp_path / "lost.key")
    with pytest.raises(UnknownSetting, match=r"tls.key is '.*lost.key', which cannot be read"):
        await ServiceProcess("small", ServiceSettings(tls=lost), SmallService()).run()
