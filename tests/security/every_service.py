"""One process with every gRPC service of the contracts; each RPC answers an empty message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2, profile_query_pb2
from citewell.recommender.v1 import recommender_pb2
from citewell.reranker.v1 import reranker_pb2
from citewell.runtime.channels import open_channel
from citewell.runtime.health import Check
from citewell.runtime.server import ServiceProcess
from citewell.runtime.settings import ServiceSettings, TlsClient

CONTRACTS = (recommender_pb2, profile_query_pb2, ledger_pb2, index_pb2, reranker_pb2, ingestion_pb2)
SERVICES = {
    service.full_name: service for contract in CONTRACTS for service in contract.DESCRIPTOR.services_by_name.values()
}
RECOMMEND = "/citewell.recommender.v1.RecommenderService/Recommend"


def every_rpc() -> Iterator[MethodDescriptor]:
    """Every RPC of every service."""
    for service in SERVICES.values():
        yield from service.methods


def path_of(rpc: MethodDescriptor) -> str:
    return f"/{rpc.containing_service.full_name}/{rpc.name}"


class EveryService:
    """Answers every RPC; a call of Recommend waits while `hold` is set."""

    grpc_services = tuple(SERVICES)

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._entered = asyncio.Semaphore(0)

    async def until_entered(self, calls: int) -> None:
        """Returns when so many more unary calls have reached their handlers."""
        async with asyncio.timeout(10):
            for _ in range(calls):
                await self._entered.acquire()

    def register(self, server: grpc.aio.Server) -> None:
        for name, service in SERVICES.items():
            handlers = {rpc.name: self._handler(rpc) for rpc in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    def _handler(self, rpc: MethodDescriptor) -> Any:
        request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)

        async def unary(_: Any, __: Any) -> Any:
            self._entered.release()
            await self.go_on.wait()
            return response()

        async def drained(requests: Any, __: Any) -> Any:
            async for _ in requests:
                pass
            return response()

        async def stream(requests: Any, __: Any) -> AsyncIterator[Any]:
            if rpc.client_streaming:
                async for _ in requests:
                    yield response()
            else:
                yield response()

        kinds: dict[tuple[bool, bool], tuple[Any, Any]] = {
            (False, False): (grpc.unary_unary_rpc_method_handler, unary),
            (True, False): (grpc.stream_unary_rpc_method_handler, drained),
            (False, True): (grpc.unary_stream_rpc_method_handler, stream),
            (True, True): (grpc.stream_stream_rpc_method_handler, stream),
        }
        make, behaviour = kinds[rpc.client_streaming, rpc.server_streaming]
        return make(behaviour, request.FromString, response.SerializeToString)

    async def start(self) -> None:
        pass

    async def check(self) -> None:
        pass

    def dependencies(self) -> Mapping[str, Check]:
        return {}

    async def stop(self) -> None:
        pass


@contextlib.asynccontextmanager
async def running(settings: ServiceSettings) -> AsyncIterator[tuple[EveryService, ServiceProcess]]:
    service = EveryService()
    process = ServiceProcess("every", settings, service)
    task = asyncio.create_task(process.run())
    bound = asyncio.create_task(process.bound.wait())
    await asyncio.wait({task, bound}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    if task.done():
        bound.cancel()
        task.result()
    try:
        yield service, process
    finally:
        service.go_on.set()
        process.stop()
        await asyncio.wait_for(task, 20)


async def call(channel: grpc.aio.Channel, path: str = RECOMMEND, *, token: str = "", seconds: float = 5.0) -> str:
    """OK, or the code and reason with which a call of an RPC fails."""
    _, service, name = path.split("/")
    rpc = SERVICES[service].methods_by_name[name]
    request = GetMessageClass(rpc.input_type)()
    kind = f"{'stream' if rpc.client_streaming else 'unary'}_{'stream' if rpc.server_streaming else 'unary'}"
    method = getattr(channel, kind)(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(rpc.output_type).FromString,
    )
    metadata = (("authorization", token),) if token else None
    try:
        answer = method(iter([request]) if rpc.client_streaming else request, metadata=metadata, timeout=seconds)
        if rpc.server_streaming:
            async for _ in answer:
                pass
        else:
            await answer
    except grpc.aio.AioRpcError as error:
        return said(error)
    return "OK"


def said(error: grpc.aio.AioRpcError) -> str:
    """The code of a failed call and, if our server answered, its reason."""
    from citewell.runtime.channels import from_rpc_error

    reason = from_rpc_error(error, "test").reason
    return error.code().name if reason == error.code().name else f"{error.code().name} {reason}"


@contextlib.asynccontextmanager
async def connected(process: ServiceProcess, tls: TlsClient | None = None) -> AsyncIterator[grpc.aio.Channel]:
    channel = open_channel(f"localhost:{process.port}", tls)
    try:
        yield channel
    finally:
        await channel.close()
