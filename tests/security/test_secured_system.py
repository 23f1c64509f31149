"""`citewell up --secured`: every service with TLS, certificates and a policy; the commands and the edge work on it."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from playwright.sync_api import Browser, expect

from citewell.commands.stack import State
from citewell.index.v1 import index_pb2
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.lab.dataset import read_dataset
from citewell.profiler.v1 import ledger_pb2
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.recommender.v1 import recommender_pb2
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from tests.lab_sets import write_lines
from tests.security.every_service import RECOMMEND
from tests.servers.processes import free_ports
from tests.tiny_models import write_tiny_encoder

PAPERS = [
    {"publication": {"paper_id": "p0", "revision": 1, "title": "Citing well", "published": {"year": 2020}}},
    {
        "publication": {
            "paper_id": "p1",
            "revision": 1,
            "title": "On citing well",
            "published": {"year": 2021},
            "masked_contexts": [{"text": "As TARGETCIT has shown, one can cite well.", "cited_id": "p0"}],
        }
    },
]


@dataclass(frozen=True, slots=True)
class SecuredSystem:
    data: Path
    environment: Mapping[str, str]

    @property
    def security(self) -> Path:
        return self.data / "security"

    def run(self, *words: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """A command of citewell over this system."""
        return subprocess.run(
            [sys.executable, "-m", "citewell.cli", *words],
            input=given,
            capture_output=True,
            text=True,
            env={**self.environment, **more},
            timeout=240,
        )

    def address(self, service: str) -> str:
        state = State.read(self.data)
        assert state
        return state.addresses[service]

    def channel(self, service: str, name: str) -> grpc.Channel:
        """A channel with the certificate of a service or of the operator."""
        pem = [(self.security / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem")]
        return grpc.secure_channel(self.address(service), grpc.ssl_channel_credentials(*pem))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSystem]:
    folder = tmp_path_factory.mktemp("secured")
    settings = {
        "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(folder / "encoder")),
        "CITEWELL_PROFILER__ENCODER_CACHE": str(folder / "graphs"),
        "CITEWELL_RERANKER__BACKEND": "none",
        "CITEWELL_RECOMMENDER__METRICS_PORT": str(free_ports(1)[0]),
        "CITEWELL_RECOMMENDER__FEEDBACK": "text",
    }
    system = SecuredSystem(folder / "data", {**os.environ, **settings})
    data = ("--data", str(system.data))
    up = system.run("up", *data, "--secured", "--detach", "--port-base", "0")
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        lines = "\n".join(map(json.dumps, PAPERS))
        published = system.run("publish", *data, "--timeout", "120", given=lines)
        assert published.returncode == 0, published.stdout + published.stderr
        yield system
    finally:
        system.run("down", *data)


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("explain", "p0", "as TARGETCIT has shown"),
        ("doctor", "profiles"),
    ],
    ids=" ".join,
)
def test_the_commands_work(system: SecuredSystem, words: tuple[str, ...]) -> None:
    done = system.run(*words, "--data", str(system.data), "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_certificate_a_command_gets_no_connection(system: SecuredSystem) -> None:
    address = system.address("recommender")
    done = system.run("recommend", "as TARGETCIT", "--address", address, "--timeout", "3")
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr or "DEADLINE_EXCEEDED" in done.stderr


def test_a_command_can_bring_its_own_certificate_and_token(system: SecuredSystem) -> None:
    security = system.security
    connection = {
        "CITEWELL_TLS_CA": str(security / "ca.pem"),
        "CITEWELL_TLS_CERT": str(security / "edge.pem"),
        "CITEWELL_TLS_KEY": str(security / "edge.key"),
    }
    words = ("recommend", "as TARGETCIT has shown", "--no-rerank", "--data", str(system.data), "--timeout", "60")
    without = system.run(*words, **connection)
    assert "UNAUTHENTICATED, CREDENTIALS_MISSING" in without.stderr
    token = {"CITEWELL_TOKEN_FILE": str(security / "writer.token")}
    assert system.run(*words, **connection, **token).returncode == 0
    denied = system.run("dead-letters", "list", "--data", str(system.data), **connection, **token)
    assert "PERMISSION_DENIED, SCOPE_MISSING" in denied.stderr
    assert (security / "writer.token").read_text() not in denied.stderr


def test_a_service_may_do_its_part_and_nothing_else(system: SecuredSystem) -> None:
    with system.channel("index", "recommender") as index:
        stub = IndexServiceStub(index)
        assert stub.GetPapers(index_pb2.GetPapersRequest(ids=["p0"]), timeout=20).papers
        with pytest.raises(grpc.RpcError, match=r"internal\.write"):
            stub.DropView(index_pb2.DropViewRequest(index_view="x"), timeout=20)
    with (
        system.channel("profiler", "ingestion") as profiler,
        pytest.raises(grpc.RpcError, match="needs the scope operate"),
    ):
        LedgerServiceStub(profiler).ListViews(ledger_pb2.ListViewsRequest(), timeout=20)
    with (
        system.channel("recommender", "ingestion") as recommender,
        pytest.raises(grpc.RpcError, match="needs the scope recommend"),
    ):
        RecommenderServiceStub(recommender).Info(recommender_pb2.InfoRequest(), timeout=20)


def test_the_edge_passes_the_callers_token_on_and_adds_no_rights(system: SecuredSystem) -> None:
    host, _, port = system.address("http").partition(":")
    context = ssl.create_default_context(cafile=system.security / "ca.pem")
    token = (system.security / "writer.token").read_text()

    def post(rpc: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
        body = json.dumps({"query": {"context": "as TARGETCIT has shown"}, "options": {"rerank": False}})
        connection.request("POST", rpc, body, {"content-type": "application/json", **headers})
        answer = connection.getresponse()
        told = answer.status, answer.read()
        connection.close()
        return told

    status, told = post(RECOMMEND)
    assert (status, json.loads(told)["code"]) == (401, "unauthenticated")
    assert post(RECOMMEND, authorization=f"Bearer {token}")[0] == 200
    assert post(RECOMMEND, authorization=f"Bearer {token[:-4]}AAAA")[0] == 401
    assert post("/citewell.ingestion.v1.IngestionService/Publish", authorization=f"Bearer {token}")[0] == 404


def test_feedback_is_exported_with_the_operators_certificate_and_only_with_it(
    system: SecuredSystem, tmp_path: Path
) -> None:
    connection = {
        "CITEWELL_TLS_CA": str(system.security / "ca.pem"),
        "CITEWELL_TLS_CERT": str(system.security / "edge.pem"),
        "CITEWELL_TLS_KEY": str(system.security / "edge.key"),
        "CITEWELL_TOKEN_FILE": str(system.security / "writer.token"),
    }
    token = ("authorization", f"Bearer {(system.security / 'writer.token').read_text()}")
    context = "as TARGETCIT has shown"
    with system.channel("recommender", "edge") as recommender:
        told = RecommenderServiceStub(recommender).RecordFeedback(
            recommender_pb2.RecordFeedbackRequest(
                shown=["p0", "p1"],
                chosen=["p0"],
                keep_text=True,
                query=recommender_pb2.Query(context=context, title="Mine"),
            ),
            timeout=60,
            metadata=[token],
        )
    assert told.text_kept
    corpus = write_lines(
        tmp_path / "corpus",
        [{"id": paper, "title": "Citing well", "year": 2020} for paper in ("p0", "p1")],
        [{"id": "c0", "citing_id": "p1", "cited_id": "p0", "text": "As TARGETCIT has shown.", "year": 2021}],
        {"train": ["p1"], "validation": [], "test": []},
    )
    words = ("export", "feedback", str(tmp_path / "out"), "--corpus", str(corpus), "--data", str(system.data))
    denied = system.run(*words, **connection)
    assert denied.returncode == 1
    assert "PERMISSION_DENIED, SCOPE_MISSING" in denied.stderr
    assert not (tmp_path / "out").exists()
    done = system.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 events, 1 with a choice, 1 contexts" in done.stdout
    kept = [each for each in read_dataset(tmp_path / "out").contexts.texts if each == context]
    assert kept == [context]


def test_the_page_asks_for_a_token_and_answers_with_it(system: SecuredSystem, chromium: Browser) -> None:
    context = chromium.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.goto(f"https://{system.address('http')}/")
    expect(page.locator("#token")).to_be_focused()
    page.fill("#text", "as [?] has shown")
    page.locator("#text").press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("did not work")
    page.fill("#token", (system.security / "writer.token").read_text())
    page.locator("#token").press("Enter")
    expect(page.locator("#status")).to_have_text("1 of 1 place answered")
    expect(page.locator("#share")).to_be_visible()
    context.close()


def test_metrics_name_the_clients_of_the_policy_and_nobody_else(system: SecuredSystem) -> None:
    host, _, port = system.address("http").partition(":")
    context = ssl.create_default_context(cafile=system.security / "ca.pem")
    token = (system.security / "writer.token").read_text()
    edge = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
    edge.request("POST", RECOMMEND, "{}", {"content-type": "application/json", "authorization": f"Bearer {token}"})
    assert edge.getresponse().status == 400
    edge.close()
    metrics = http.client.HTTPConnection(host, int(system.environment["CITEWELL_RECOMMENDER__METRICS_PORT"]))
    metrics.request("GET", "/metrics")
    text = metrics.getresponse().read().decode()
    metrics.close()
    labels = set(re.findall(r'citewell_client_calls_total\{client="([^"]*)"', text))
    assert "other" in labels, "the bearer of the token"
    assert labels <= {"other", "operator", "ingestion"}
    assert "citewell_certificate_expires" in text


def test_no_key_or_token_is_in_a_log_or_readable_by_others(system: SecuredSystem) -> None:
    secrets = [path.read_text() for path in system.security.iterdir() if path.suffix in (".key", ".token")]
    assert secrets
    for log in (system.data / "logs").iterdir():
        told = log.read_text(errors="replace")
        assert not any(line in told for secret in secrets for line in secret.splitlines() if len(line) > 30)
    assert all(path.stat().st_mode & 0o077 == 0 for path in system.security.iterdir())
