"""The edge by itself: what it answers when the recommender is gone, whom it lets in, how much it takes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.rpc import error_details_pb2, status_pb2

from citewell.edge.server import EdgeServer
from citewell.edge.settings import EdgeSettings
from citewell.runtime.server import ServiceProcess
from citewell.runtime.settings import UnknownSetting

RECOMMEND = "/citewell.recommender.v1.RecommenderService/Recommend"
MANUSCRIPT = f"{RECOMMEND}Manuscript"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextlib.asynccontextmanager
async def serving(settings: EdgeSettings) -> AsyncIterator[None]:
    process = ServiceProcess("edge", settings, EdgeServer(settings))
    task = asyncio.create_task(process.run())
    try:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", settings.http_port))[1].close()
                    break
                await asyncio.sleep(0.02)
        yield
    finally:
        process.stop()
        await asyncio.wait_for(task, 20)


async def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    def blocking() -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.body = answer.read()  # type: ignore[attr-defined]
        connection.close()
        return answer

    return await asyncio.to_thread(blocking)


async def test_without_a_recommender_answers_say_so_and_the_edge_lives() -> None:
    port, nobody = free_port(), free_port()
    async with serving(EdgeSettings(http_port=port, recommender_address=f"127.0.0.1:{nobody}")):
        answer = await ask(port, "POST", RECOMMEND, b"{}", content_type="application/json", connect_timeout_ms="5000")
        assert (answer.status, json.loads(answer.body)["code"]) == (503, "unavailable")  # type: ignore[attr-defined]
        assert (await ask(port, "GET", "/healthz")).status == 200


async def test_json_that_cannot_be_read_is_refused_with_a_reason_and_the_field() -> None:
    port, nobody = free_port(), free_port()
    refused = {
        r'{"files": [{"name": "a.tex", "content": "\\section{Boats}"}]}': ("files[0].content", "base64"),
        '{"files": [{"name": "a.tex", "content": "data:text/plain;base64,Qm9hdHM="}]}': ("files[0].content", "base64"),
        '{"files": [{"content": 7}]}': ("files[0].content", "base64"),
        '{"files": {"name": "a.tex"}}': ("files", "a list"),
        '{"files": ["a.tex"]}': ("files[0]", "a JSON object"),
        "[]": ("request", "a JSON object"),
        '{"options": []}': ("options", "a JSON object"),
        '{"options": {"topN": 3}}': ("options.topN", "one of topK"),
        '{"options": {"topK": "many"}}': ("options.top_k", "an integer"),
        '{"options": {"topK": 99999999999}}': ("options.top_k", "an integer of 32 bits"),
        '{"options": {"rerank": "yes"}}': ("options.rerank", "true or false"),
        '{"options": {"strategy": "BEST"}}': ("options.strategy", "STRATEGY_HYBRID"),
        '{"options": {"filter": {"venues": [1]}}}': ("options.filter.venues[0]", "a string"),
        '{"text": {}}': ("text", "a string"),
        '{"text": "a", "text": "b"}': ("text", "once"),
    }
    async with serving(EdgeSettings(http_port=port, recommender_address=f"127.0.0.1:{nobody}")):
        for body, (field, told) in refused.items():
            error = await _error(port, body.encode())
            assert (error["code"], told in error["message"]) == ("invalid_argument", True), error
            assert _reason_and_field(error) == ("INVALID_FIELD", field), error
        # All spellings of base64 go on to the recommender, which is not there.
        for content in ("Qm9hdHM=", "Qm9hdHM", r"Qm9h\ndHM=\n", "-_+/", ""):
            error = await _error(port, f'{{"files": [{{"name": "a.tex", "content": "{content}"}}]}}'.encode())
            assert error["code"] == "unavailable", content


async def test_what_is_no_json_is_refused_with_a_reason_and_the_place() -> None:
    port, nobody = free_port(), free_port()
    refused = {
        b"{": ("MALFORMED_MESSAGE", "request", "line 1, column 2"),
        b'{"text":\n "a",}': ("MALFORMED_MESSAGE", "request", "line 2, column 6"),
        b"[" * 100_000: ("MALFORMED_MESSAGE", "request", "JSON"),
        b'{"options": {"topK": ' + b"9" * 5000 + b"}}": ("MALFORMED_MESSAGE", "request", "JSON"),
        b'{"text": "\xff"}': ("BROKEN_UTF8", "request", "byte 10"),
        rb'{"text": "\ud800"}': ("BROKEN_UTF8", "text", "surrogate"),
    }
    async with serving(EdgeSettings(http_port=port, recommender_address=f"127.0.0.1:{nobody}")):
        for body, (reason, field, told) in refused.items():
            error = await _error(port, body)
            assert (error["code"], told in error["message"]) == ("invalid_argument", True), error
            assert _reason_and_field(error) == (reason, field), error
        binary = await ask(port, "POST", RECOMMEND, b"\xff", content_type="application/proto")
        assert _reason_and_field(json.loads(binary.body)) == ("MALFORMED_MESSAGE", "request")  # type: ignore[attr-defined]


def _reason_and_field(error: dict[str, Any]) -> tuple[str, str]:
    found = error["details"][1]
    assert found["type"] == "google.rpc.BadRequest"
    wrong = error_details_pb2.BadRequest.FromString(base64.b64decode(found["value"] + "=="))
    return _info(error).reason, wrong.field_violations[0].field


async def _error(port: int, message: bytes) -> dict[str, Any]:
    answer = await ask(port, "POST", MANUSCRIPT, _framed(message), content_type="application/connect+json")
    error: dict[str, Any] = json.loads(answer.body[5:])["error"]  # type: ignore[attr-defined]
    return error


def _framed(message: bytes) -> bytes:
    """A message of a Connect stream."""
    return b"\0" + len(message).to_bytes(4, "big") + message


async def test_requests_that_are_not_read_are_refused_with_a_reason() -> None:
    port = free_port()
    async with serving(EdgeSettings(http_port=port, max_request_megabytes=1)):
        large = json.loads((await ask(port, "POST", RECOMMEND, b" " * (2 << 20))).body)  # type: ignore[attr-defined]
        assert (large["code"], _info(large).reason) == ("resource_exhausted", "MESSAGE_TOO_LARGE")
        odd = json.loads((await ask(port, "POST", RECOMMEND, b"{}", authorization="B\xe4r")).body)  # type: ignore[attr-defined]
        assert (odd["code"], _reason_and_field(odd)) == ("invalid_argument", ("INVALID_FIELD", "headers"))


def _info(error: dict[str, Any]) -> error_details_pb2.ErrorInfo:
    found = error["details"][0]
    assert found["type"] == "google.rpc.ErrorInfo"
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(found["value"] + "=="))
    assert info.domain == "citewell"
    return info


async def test_named_origins_may_call_and_others_may_not() -> None:
    port = free_port()
    async with serving(EdgeSettings(http_port=port, allowed_origins=("https://editor.example",))):
        asked = await ask(port, "OPTIONS", RECOMMEND, origin="https://editor.example")
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == "https://editor.example"
        assert "connect-timeout-ms" in asked.headers["access-control-allow-headers"]
        answered = await ask(
            port, "POST", RECOMMEND, b"{", content_type="application/json", origin="https://editor.example"
        )
        assert answered.headers["access-control-allow-origin"] == "https://editor.example"
        other = await ask(port, "OPTIONS", RECOMMEND, origin="https://other.example")
        assert other.headers["access-control-allow-origin"] is None


async def test_pages_of_other_origins_may_read_the_status_of_grpc_web() -> None:
    port = free_port()
    grpc_web = {"content_type": "application/grpc-web+proto", "x_grpc_web": "1", "origin": "https://editor.example"}
    settings = EdgeSettings(http_port=port, allowed_origins=("https://editor.example",), max_request_megabytes=1)
    async with serving(settings):
        early = await ask(port, "POST", RECOMMEND, _framed(b""), grpc_timeout="soon", **grpc_web)
        large = await ask(port, "POST", RECOMMEND, b" " * (2 << 20), **grpc_web)
        for answer, status in ((early, "3"), (large, "8")):
            exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
            assert exposed >= {"grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-encoding"}
            assert (answer.status, answer.headers["grpc-status"]) == (200, status)
        details = status_pb2.Status.FromString(base64.b64decode(large.headers["grpc-status-details-bin"] + "=="))
        info = error_details_pb2.ErrorInfo()
        assert details.details[0].Unpack(info)
        assert info.reason == "MESSAGE_TOO_LARGE"
        asked = await ask(port, "OPTIONS", RECOMMEND, origin="https://editor.example")
        assert {"x-grpc-web", "grpc-timeout", "traceparent"} <= set(
            asked.headers["access-control-allow-headers"].split(", ")
        )


async def test_a_connection_beyond_the_limit_is_refused_at_once() -> None:
    port = free_port()
    async with serving(EdgeSettings(http_port=port, max_connections=1)):
        _, held = await asyncio.open_connection("127.0.0.1", port)
        held.write(b"POST " + RECOMMEND.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        await held.drain()
        statuses = set()
        async with asyncio.timeout(10):
            while 503 not in statuses:
                statuses.add((await ask(port, "GET", "/healthz")).status)
        held.close()


async def test_without_the_page_only_the_api_is_served() -> None:
    port = free_port()
    async with serving(EdgeSettings(http_port=port, page=False)):
        assert (await ask(port, "GET", "/")).status == 404
        assert (await ask(port, "GET", "/openapi.json")).status == 200


async def test_a_port_in_use_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        settings = EdgeSettings(http_port=held.getsockname()[1])
        with pytest.raises(UnknownSetting, match="HTTP_PORT"):
            await ServiceProcess("edge", settings, EdgeServer(settings)).run()
