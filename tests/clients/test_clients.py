"""Clients in Go, Java and TypeScript, built by their own tools, against running services.

Each does the same: it asks, publishes and is refused, and prints `ok …` for what it saw.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1 import recommender_pb2_grpc
from tests.servers.missing import missing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUF = ROOT / ".cache/buf/node_modules/.bin/buf"
PASSED = [
    "ok recommend",
    "ok deadline",
    "ok error details",
    "ok batch",
    "ok retry info",
    "ok read your writes",
    "ok retry config",
    "ok tls and token",
]


def test_the_proxy_refuses_a_client_without_retries(environment: dict[str, str]) -> None:
    request = messages.RecommendRequest(query=messages.Query(context="We follow TARGETCIT."))
    with grpc.insecure_channel(environment["CITEWELL_REFUSING"]) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            recommender_pb2_grpc.RecommenderServiceStub(channel).Recommend(request, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.timeout(600)
def test_go(environment: dict[str, str], tmp_path: Path) -> None:
    require("go", "Go 1.26 or newer")
    require_buf()
    program = tmp_path / "client"
    run([str(BUF), "generate", "../../../protos"], HERE / "go")
    run(["go", "build", "-o", str(program), "."], HERE / "go")
    assert run([str(program)], tmp_path, environment).splitlines() == PASSED


@pytest.mark.timeout(600)
def test_java(environment: dict[str, str]) -> None:
    require("java", "Java 17")
    require("mvn", "Maven")
    run(["mvn", "-q", "-B", "package"], HERE / "java")
    classes = "target/client-1.jar:target/libraries/*"
    assert run(["java", "-cp", classes, "citewell.client.Client"], HERE / "java", environment).splitlines() == PASSED


@pytest.mark.timeout(600)
def test_typescript(environment: dict[str, str]) -> None:
    require("npm", "Node.js 20 with npm")
    require_buf()
    folder = HERE / "typescript"
    run(["npm", "install", "--silent", "--no-package-lock", "--no-audit", "--no-fund"], folder)
    run(["npm", "run", "-s", "generate"], folder, {"PATH": f"{BUF.parent}:{os.environ['PATH']}"})
    run(["npm", "run", "-s", "build"], folder)
    assert run(["node", "dist/src/client.js"], folder, environment).splitlines() == PASSED


def require(program: str, what: str) -> None:
    if shutil.which(program) is None:
        missing(f"{program} is missing: install {what}")


def require_buf() -> None:
    if not BUF.exists():
        missing("buf is missing: install npm, then run make setup-dev")


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """The output of a command; fails with all it said when it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
