"""Slow clients, floods, and messages that are too large or no messages: the others are still answered."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from citewell.edge.settings import EdgeSettings
from citewell.reranker.v1 import reranker_pb2
from citewell.runtime.settings import ServiceSettings
from tests.security.authority import Authority
from tests.security.edge import edge
from tests.security.every_service import RECOMMEND, call, connected, running
from tests.servers.processes import free_ports

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# HTTP/2 frames: an empty SETTINGS; a HEADERS of stream 1 that does not end.
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@contextlib.contextmanager
def sockets(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), 10)))
            for _ in range(count)
        ]


def closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes the connection in time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def get(port: int, path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("greeting", [b"", PREFACE[:10]], ids=["silent", "half a greeting"])
@pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain text"])
async def test_a_connection_that_does_not_greet_is_closed(tmp_path: Path, greeting: bytes, secure: bool) -> None:
    authority = Authority(tmp_path)
    told = ServiceSettings(handshake_seconds=3)  # time enough for a client that does greet, on a busy machine
    settings = told.model_copy(update={"tls": authority.server()}) if secure else told
    async with running(settings) as (_, process):
        with sockets(process.port, 20) as held:
            for each in held:
                each.sendall(greeting)
            async with connected(process, authority.client() if secure else None) as channel:
                assert await call(channel) == "OK"
            closed = await asyncio.gather(*(asyncio.to_thread(closed_within, each, 20) for each in held))
            assert all(closed)


async def test_a_call_that_never_completes_ends_with_its_connection_and_hinders_nobody() -> None:
    settings = ServiceSettings(max_connection_age_seconds=2, default_deadline_seconds=1)
    async with running(settings) as (_, process), connected(process) as channel:
        with sockets(process.port, 20) as held:
            for each in held:
                each.sendall(PREFACE + SETTINGS + _half_a_call())
            assert await call(channel) == "OK"
            closed = await asyncio.gather(*(asyncio.to_thread(closed_within, each, 15) for each in held))
            assert all(closed)
            assert await call(channel) == "OK"


def _half_a_call() -> bytes:
    """HEADERS of a call of Recommend in HPACK literals, then 5 of 100 bytes of its message."""

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    block = b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", RECOMMEND.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    headers = len(block).to_bytes(3, "big") + b"\x01\x04" + (1).to_bytes(4, "big") + block
    part = b"\x00" + (100).to_bytes(4, "big") + b"12345"
    return headers + len(part).to_bytes(3, "big") + b"\x00\x00" + (1).to_bytes(4, "big") + part


async def test_connections_beyond_the_limit_are_closed_and_a_place_that_is_free_again_is_used() -> None:
    async with running(ServiceSettings(most_connections=5)) as (_, process):
        with sockets(process.port, 5) as held:
            for each in held:
                each.sendall(PREFACE + SETTINGS)
                assert await asyncio.to_thread(each.recv, 9), "the server's greeting"
            with sockets(process.port, 3) as more:
                for each in more:
                    with contextlib.suppress(ConnectionError):
                        each.sendall(PREFACE + SETTINGS)
                    assert await asyncio.to_thread(closed_within, each, 10)
        async with connected(process) as channel:
            async with asyncio.timeout(15):
                while await call(channel) != "OK":
                    pass


async def test_a_flood_of_calls_is_refused_with_the_time_to_retry() -> None:
    async with running(ServiceSettings(most_calls=4)) as (service, process), connected(process) as channel:
        service.go_on.clear()
        flood = [asyncio.create_task(call(channel, seconds=30)) for _ in range(300)]
        await service.until_entered(4)
        async with asyncio.timeout(30):
            while sum(each.done() for each in flood) < 296:
                await asyncio.wait([each for each in flood if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        # A method that streams nothing and waits for nobody is answered meanwhile.
        assert await call(channel, "/citewell.ingestion.v1.IngestionService/PublishStream") == "OK"
        service.go_on.set()
        answers = await asyncio.gather(*flood)
        assert (answers.count("OK"), answers.count("RESOURCE_EXHAUSTED OVERLOADED")) == (4, 296)


async def test_an_oversized_message_is_refused_and_one_that_is_none_named() -> None:
    async with running(ServiceSettings(max_message_megabytes=1)) as (_, process), connected(process) as channel:
        rerank = channel.unary_unary("/citewell.reranker.v1.RerankerService/Rerank")
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await rerank(reranker_pb2.RerankRequest(context="x" * (2 << 20)).SerializeToString(), timeout=10)
        assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for data in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x07", b"\x0a\x02\xc3\x28"):
            with pytest.raises(grpc.aio.AioRpcError) as broken:
                await rerank(data, timeout=10)
            assert broken.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            status = rpc_status.from_call(broken.value)
            info = error_details_pb2.ErrorInfo()
            assert status
            assert status.details[0].Unpack(info)
            assert info.reason in ("MALFORMED_MESSAGE", "BROKEN_UTF8")
        assert await call(channel) == "OK"


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n",
        b"POST "
        + RECOMMEND.encode()
        + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /heal",
    ],
    ids=["nothing", "half the headers", "half the body", "half of a second request"],
)
async def test_http_clients_that_send_slowly_are_closed_and_hinder_nobody(begun: bytes) -> None:
    (port,) = free_ports(1)
    settings = EdgeSettings(http_port=port, max_in_flight=4, receive_seconds=2)
    async with edge(settings) as in_thread:
        with sockets(port, 20) as held:
            for each in held:
                each.sendall(begun)
            assert await in_thread(get, port) == 200
            assert all(await asyncio.gather(*(in_thread(closed_within, each, 20) for each in held)))
            assert await in_thread(get, port) == 200


async def test_an_http_client_that_does_not_read_is_closed() -> None:
    (port,) = free_ports(1)
    async with edge(EdgeSettings(http_port=port, send_seconds=1, receive_seconds=60)) as in_thread:
        with contextlib.closing(socket.socket()) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", port))
            lazy.setblocking(False)
            ask = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
            async with asyncio.timeout(30):  # until the server gives up, it takes requests whose answers nobody reads
                while True:
                    try:
                        lazy.send(ask)
                    except BlockingIOError:
                        await asyncio.sleep(0.05)
                    except ConnectionError:
                        break
            assert await in_thread(get, port) == 200


async def test_an_oversized_http_request_is_refused_before_it_is_read() -> None:
    (port,) = free_ports(1)
    async with edge(EdgeSettings(http_port=port, max_request_megabytes=1)) as in_thread:

        def post() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("POST", RECOMMEND, b" " * (1 << 20) + b"{}", {"content-type": "application/json"})
                return connection.getresponse().status
            finally:
                connection.close()

        assert await in_thread(post) == 429


async def test_a_header_that_is_no_text_is_refused() -> None:
    (port,) = free_ports(1)
    async with edge(EdgeSettings(http_port=port)) as in_thread:

        def post() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("POST", RECOMMEND, b"{}", {"content-type": "application/json", "traceparent": "é"})
                return connection.getresponse().status
            finally:
                connection.close()

        assert await in_thread(post) == 400
