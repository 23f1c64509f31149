"""The HTTP gateway as browsers and scripts use it."""

from __future__ import annotations

import http.client
import json
import struct
from typing import Any

import pytest

from citewell.recommender.v1 import recommender_pb2 as messages
from tests.e2e.conftest import Running

SERVICE = "/citewell.recommender.v1.RecommenderService"


def _request(
    running: Running, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", running.stack.ports["http"], timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _post(running: Running, method: str, request: Any, **headers: str) -> tuple[int, Any]:
    told = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    status, _, body = _request(running, "POST", f"{SERVICE}/{method}", json.dumps(request).encode(), told)
    return status, json.loads(body)


def _asked(running: Running) -> dict[str, Any]:
    query = running.queries[0].query
    return {"query": {"context": query.context, "title": query.title}, "options": {"topK": 3, "rerank": False}}


def test_json_answers_are_those_of_grpc(running: Running) -> None:
    query = running.queries[0].query
    status, answer = _post(running, "Recommend", _asked(running))
    assert status == 200
    same = messages.Query(context=query.context, title=query.title)
    expected = running.client.recommend(same, messages.Options(top_k=3, rerank=False))
    assert [item["paper"]["id"] for item in answer["items"]] == [item.paper.id for item in expected.items]


def test_grpc_web_and_binary_connect_are_spoken(running: Running) -> None:
    query = running.queries[0].query
    message = messages.RecommendRequest(
        query=messages.Query(context=query.context), options=messages.Options(top_k=2, rerank=False)
    ).SerializeToString()
    status, _, body = _request(running, "POST", f"{SERVICE}/Recommend", message, {"content-type": "application/proto"})
    assert (status, len(messages.RecommendResponse.FromString(body).items)) == (200, 2)
    framed = struct.pack(">BI", 0, len(message)) + message
    told = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    status, _, body = _request(running, "POST", f"{SERVICE}/Recommend", framed, told)
    size = struct.unpack(">I", body[1:5])[0]
    assert (status, len(messages.RecommendResponse.FromString(body[5 : 5 + size]).items)) == (200, 2)
    assert b"grpc-status: 0" in body[5 + size :].replace(b"grpc-status:0", b"grpc-status: 0")


def test_places_of_a_draft_come_as_a_stream(running: Running) -> None:
    text = running.queries[0].query.context.replace("TARGETCIT", "[?]") + "\n\nAnother place [?].\n"
    body = json.dumps({"text": text, "options": {"rerank": False, "topK": 1}}).encode()
    framed = struct.pack(">BI", 0, len(body)) + body
    told = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
    status, _, answer = _request(running, "POST", f"{SERVICE}/RecommendManuscript", framed, told)
    assert status == 200
    frames = []
    while answer:
        flags, size = struct.unpack(">BI", answer[:5])
        frames.append((flags, json.loads(answer[5 : 5 + size] or b"{}")))
        answer = answer[5 + size :]
    assert frames[0][1]["outline"]["places"] == 2
    assert sorted(frame.get("place", 0) for _, frame in frames[1:-1]) == [0, 1]
    assert frames[-1] == (2, {})


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        ({"query": {"context": "no marker"}}, "invalid_argument", "TARGETCIT"),
        ({"query": {"contxt": "x"}}, "invalid_argument", "contxt"),
        ({"options": {"topK": "many"}}, "invalid_argument", "options.top_k"),
    ],
)
def test_errors_keep_their_code_words_and_details(
    running: Running, request_: dict[str, Any], code: str, says: str
) -> None:
    status, error = _post(running, "Recommend", request_)
    assert (status, error["code"]) == (400, code)
    assert says in error["message"]


def test_the_reason_is_among_the_details(running: Running) -> None:
    _, error = _post(running, "Recommend", {"query": {"context": "no marker"}})
    assert {detail["type"] for detail in error["details"]} == {"google.rpc.ErrorInfo", "google.rpc.BadRequest"}


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'{"query": 1}'])
def test_broken_json_is_refused(running: Running, body: bytes) -> None:
    told = {"content-type": "application/json"}
    status, _, answer = _request(running, "POST", f"{SERVICE}/Recommend", body, told)
    assert (status, json.loads(answer)["code"]) == (400, "invalid_argument")


def test_a_deadline_is_passed_on(running: Running) -> None:
    status, error = _post(running, "Recommend", _asked(running), connect_timeout_ms="1")
    assert (status, error["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("megabytes", [9, 30])
def test_a_request_that_is_too_large_is_refused(running: Running, megabytes: int) -> None:
    status, error = _post(running, "Recommend", {"query": {"title": "x" * (megabytes << 20)}})
    assert error["code"] == "resource_exhausted"
    assert status == 429


def test_a_refusal_is_read_also_by_a_client_that_sends_its_whole_body_first(running: Running) -> None:
    status, error = _post(running, "Recommend", {"query": {"title": "x" * (7 << 20)}}, traceparent="é")
    assert (status, error["code"]) == (400, "invalid_argument")


def test_other_origins_are_let_in_only_when_named(running: Running) -> None:
    status, headers, _ = _request(
        running, "OPTIONS", f"{SERVICE}/Recommend", headers={"origin": "http://other.example"}
    )
    assert "access-control-allow-origin" not in headers
    assert status != 204


def test_the_page_loads_nothing_from_elsewhere(running: Running) -> None:
    status, headers, body = _request(running, "GET", "/")
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    assert b"http://" not in body
    assert b"https://" not in body
    for path in ("/page.js", "/answers.js", "/service.js", "/page.css"):
        assert _request(running, "GET", path)[0] == 200
    assert _request(running, "GET", "/../settings.py")[0] == 404


def test_openapi_describes_every_method_and_message(running: Running) -> None:
    document = json.loads(_request(running, "GET", "/openapi.json")[2])
    methods = messages.DESCRIPTOR.services_by_name["RecommenderService"].methods
    assert {path.rsplit("/", 1)[1] for path in document["paths"]} == {method.name for method in methods}
    referenced = set(json.dumps(document).split('"#/components/schemas/')[1:])
    assert {each.split('"')[0] for each in referenced} <= document["components"]["schemas"].keys()
    assert "topK" in document["components"]["schemas"]["citewell.recommender.v1.Options"]["properties"]
