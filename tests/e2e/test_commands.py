"""The command line against running services, and the command that starts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from citewell.client import AsyncCitewell, Citewell, CitewellError, InvalidField, Options, Query, Recommendation
from citewell.commands.stack import SERVICES, State, alive
from tests.e2e.conftest import Running
from tests.servers.missing import missing
from tests.servers.processes import free_ports, wait_until

ROOT = Path(__file__).parents[2]
BUF = ROOT / ".cache" / "buf" / "node_modules" / ".bin" / "buf"


def citewell(*arguments: str, stdin: str = "", seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Runs one command in a process, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "citewell.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "COLUMNS": "160"},
    )


def test_recommend_explains_itself(running: Running) -> None:
    address = running.stack.addresses["recommender"]
    query = running.queries[0].query
    shown = citewell("recommend", query.context, "--title", query.title, "--address", address, "-k", "3")
    assert shown.returncode == 0, shown.stderr
    assert "retrieval #" in shown.stdout
    assert "prior" in shown.stdout
    as_json = citewell("recommend", "--json", "--address", address, "-k", "3", stdin=query.context)
    items = json.loads(as_json.stdout)["items"]
    assert [item["rank"] for item in items] == [1, 2, 3]


def test_explain_tells_of_any_paper(running: Running) -> None:
    query = running.queries[0].query
    asked = [query.context, "--title", query.title, "--address", running.stack.addresses["recommender"]]
    paper_id = json.loads(citewell("recommend", "--json", *asked).stdout)["items"][3]["paper"]["id"]
    told = citewell("explain", paper_id, *asked)
    assert told.returncode == 0, told.stderr
    assert "retrieval #" in told.stdout
    assert "from what others said of it" in told.stdout
    assert json.loads(citewell("explain", paper_id, "--json", *asked).stdout)["item"]["paper"]["id"] == paper_id
    unknown = citewell("explain", "nobody's", *asked)
    assert unknown.returncode == 1
    assert "nobody's" in unknown.stderr


def test_the_client_answers_blocking_and_with_asyncio(running: Running) -> None:
    asked = running.queries[0].query
    query, wrong = Query(asked.context, asked.title, asked.abstract), Query("no marker")
    address, options = running.stack.addresses["recommender"], Options(top_k=3, rerank=False, exact=True)
    with Citewell(address) as client:
        answer = client.recommend(query, options)
        batch = client.recommend_batch([query, wrong], options)
        explained = client.explain(query, answer.items[2].paper.id, options)
        with pytest.raises(InvalidField, match="TARGETCIT") as refused:
            client.recommend(wrong)
    assert (refused.value.field, refused.value.reason) == ("query.context", "MARKER_COUNT")
    assert [item.rank for item in answer.items] == [1, 2, 3]
    assert answer.items[0].paper.title == running.publications[answer.items[0].paper.id].title
    assert answer.snapshot.exact
    assert answer.timings["total"] > 0
    assert isinstance(batch[0], Recommendation)
    assert [item.paper.id for item in batch[0].items] == [item.paper.id for item in answer.items]
    assert isinstance(batch[1], CitewellError)
    assert batch[1].reason == "MARKER_COUNT"
    assert explained.item.paper == answer.items[2].paper

    async def ask() -> Recommendation:
        async with AsyncCitewell(address) as client:
            return await client.recommend(query, options)

    assert asyncio.run(ask()).items == answer.items


def test_an_error_is_one_readable_line(running: Running) -> None:
    failed = citewell("recommend", "no marker", "--address", running.stack.addresses["recommender"])
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert "query.context" in failed.stderr
    assert "MARKER_COUNT" in failed.stderr
    gone = citewell("recommend", "as TARGETCIT", "--address", "127.0.0.1:1", "--timeout", "3")
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert "UNAVAILABLE" in gone.stderr


def test_publish_tells_what_became_of_each_line(running: Running) -> None:
    event = {"publication": {"paper_id": "told-by-command", "revision": 1, "title": "Told by a command"}}
    address = running.stack.addresses["ingestion"]
    told = citewell("publish", "--address", address, stdin=json.dumps(event) + "\n")
    assert told.returncode == 0, told.stderr
    assert "searchable APPLIED" in told.stdout
    wrong = citewell("publish", "--address", address, stdin='{"publication": {"paperid": 1}}')
    assert wrong.returncode == 1
    assert "line 1" in wrong.stderr


def test_doctor_finds_profiles_and_ledger_in_agreement(running: Running) -> None:
    found = citewell("doctor", "profiles", "--address", running.stack.addresses["profiler"])
    assert found.returncode == 0, found.stdout + found.stderr
    assert " 0 faults" in found.stdout


def test_any_grpc_tool_can_ask_by_reflection(running: Running) -> None:
    if not BUF.exists():
        missing("buf is not installed: run `make setup-dev` (needs npm)")
    address = running.stack.addresses["recommender"]
    url = f"http://{address}/citewell.recommender.v1.RecommenderService/Recommend"
    request = {"query": {"title": running.queries[0].query.title}, "options": {"topK": 2}}
    answer = subprocess.run(
        [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", json.dumps(request), url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["items"]) == 2


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        failed = citewell("up", "--data", str(tmp_path), "--port-base", str(port))
    assert failed.returncode == 1
    assert f"port {port} (for the recommender) is in use" in failed.stderr


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("CITEWELL_RECOMMENDER__DEEPTH", "7", "unknown setting CITEWELL_RECOMMENDER__DEEPTH; known here"),
        ("CITEWELL_RECOMMENDER__PRIOR_DECAY", "2", "CITEWELL_RECOMMENDER__PRIOR_DECAY is '2'"),
    ],
)
def test_a_wrong_setting_keeps_everything_down_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, says: str
) -> None:
    monkeypatch.setenv(setting, value)
    failed = citewell("up", "--data", str(tmp_path), "--port-base", "0")
    assert failed.returncode == 1
    assert says in failed.stderr
    assert State.read(tmp_path) is None


def test_down_ends_no_process_that_got_the_id_of_a_supervisor_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "up.lock").touch()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            State(other.pid, {"recommender": "127.0.0.1:1"}).write(tmp_path)
            down = citewell("down", "--data", str(tmp_path))
            assert "nothing is up" in down.stdout
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("written", ["", '{"super', '{"supervisor": 1, "later": 2}'])
def test_a_state_that_a_crash_cut_off_is_none(tmp_path: Path, written: str) -> None:
    (tmp_path / "up.json").write_text(written)
    assert State.read(tmp_path) is None


def test_up_names_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = citewell("up", "--data", str(tmp_path / "file"), "--port-base", "0")
    assert failed.returncode == 2
    assert f"--data is '{tmp_path / 'file'}'" in failed.stderr


def test_up_can_be_interrupted_while_a_service_waits_for_its_broker(tmp_path: Path) -> None:
    told = {
        "CITEWELL_INGESTION__LOG__KIND": "kafka",
        "CITEWELL_INGESTION__LOG__KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_ports(1)[0]}",
        "CITEWELL_PROFILER__LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.sqlite'}",
    }
    command = [sys.executable, "-m", "citewell.cli", "up", "--data", str(tmp_path), "--port-base", "0", "--cluster"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background ignores it
    try:
        started = subprocess.Popen(
            command, env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with started as up:
        supervisor = psutil.Process(up.pid)
        wait_until(lambda: len(supervisor.children()) == len(SERVICES), "the services", 60)
        processes = [*supervisor.children(), supervisor]
        up.send_signal(signal.SIGINT)
        _, left = psutil.wait_procs(processes, timeout=60)
        for process in left:
            process.kill()
    assert not left


def test_a_ledger_of_another_encoder_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ["--data", str(tmp_path)]
    assert citewell("up", *data, "--port-base", "0", "--detach").returncode == 0
    event = {"publication": {"paper_id": "kept", "revision": 1, "title": "A paper that is kept"}}
    try:
        assert "searchable" in citewell("publish", *data, stdin=json.dumps(event)).stdout
    finally:
        citewell("down", *data)
    with monkeypatch.context() as other:
        other.setenv("CITEWELL_PROFILER__ENCODER_MAX_TOKENS", "64")
        refused = citewell("up", *data, "--port-base", "0", "--detach")
    assert refused.returncode == 1
    assert "the profiler ended" in refused.stderr
    assert "encoder" in refused.stderr
    assert citewell("up", *data, "--port-base", "0", "--detach").returncode == 0
    try:
        answer = citewell("recommend", *data, "--title", "A paper that is kept", "--json")
        assert json.loads(answer.stdout)["items"][0]["paper"]["id"] == "kept"
    finally:
        citewell("down", *data)


def test_up_watches_over_the_services_and_down_stops_them(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path)]
    up = citewell("up", *data, "--port-base", "0", "--detach")
    assert up.returncode == 0, up.stderr
    state = State.read(tmp_path)
    assert state is not None
    try:
        assert citewell("status", *data).returncode == 0
        twice = citewell("up", *data)
        assert twice.returncode == 1
        assert "already up" in twice.stderr
        _kill_listener(state.addresses["reranker"])
        wait_until(lambda: citewell("status", *data).returncode == 0, "the reranker started again", 60)
    finally:
        down = citewell("down", *data)
    assert down.stdout.strip() == "stopped"
    assert not alive(state.supervisor)
    assert citewell("status", *data).returncode == 1


def test_a_terminated_demo_stops_what_it_started(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (tmp_path / "output").open("wb") as output:
        demo = subprocess.Popen([sys.executable, "-m", "citewell.cli", "demo"], env=environment, stdout=output)
    started: list[psutil.Process] = []
    try:
        wait_until(lambda: len(psutil.Process(demo.pid).children()) == len(SERVICES), "five services", 60)
        started = psutil.Process(demo.pid).children()
        demo.terminate()
        assert demo.wait(60) == 128 + signal.SIGTERM
        assert not any(process.is_running() for process in started)
        assert os.listdir(tmp_path) == ["output"]
    finally:
        for process in [demo, *started]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _kill_listener(address: str) -> None:
    port = int(address.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
            os.kill(connection.pid, 9)
            return
    raise AssertionError(f"nobody listens at {address}")
