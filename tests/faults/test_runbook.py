"""The runbook by its own words: each trouble is caused on running services, and the page's commands are run.

`make runbook`. What the commands printed is kept in the report (`--junitxml`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from citewell.commands.stack import State
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.publications import Publication
from citewell.types.v1 import feedback_pb2
from tests.demo_world import divided
from tests.e2e.client import Client, Refusal
from tests.e2e.conftest import publish
from tests.servers.processes import wait_until

RUNBOOK = Path(__file__).parents[2] / "deploy" / "docs" / "runbook.md"
_BLOCK = re.compile(r"^```sh (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS: dict[str, str] = dict(_BLOCK.findall(RUNBOOK.read_text("utf-8")))


@dataclass
class Operator:
    """Services started by `citewell up`, and a shell in which the page's variables are set."""

    folder: Path
    variables: dict[str, str]

    @property
    def data(self) -> Path:
        return Path(self.variables["DATA"])

    def feedback(self) -> list[str]:
        """The papers that writers were shown, one entry per event."""
        client = self.client()
        listed = client.ingestion.ListFeedback(ingestion_pb2.ListFeedbackRequest(), timeout=30)
        client.close()
        return [",".join(each.shown) for each in listed.feedback]

    def run(self, command: str, **more: str) -> str:
        """What the command printed; it must end with code 0."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env={**os.environ, "PATH": path, "TERM": "dumb", **self.variables, **more},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{printed}"
        return printed

    def client(self) -> Client:
        """A client of the services as they run now."""
        state = State.read(self.data)
        assert state is not None
        return Client(state.addresses)

    def pids(self, service: str) -> list[int]:
        """The process of a service of this folder."""
        state = State.read(self.data)
        assert state is not None
        children = Path(f"/proc/{state.supervisor}/task/{state.supervisor}/children").read_text().split()
        return [pid for pid in map(int, children) if f"citewell.{service}" in _command_line(pid)]

    def ranking(self) -> list[tuple[str, float]]:
        """One answer by profiles alone: scores by words change some seconds after the last publication."""
        client = self.client()
        try:
            query = messages.Query(context="earlier work TARGETCIT on methods", title="A draft")
            options = messages.Options(strategy=messages.STRATEGY_PROFILE, rerank=False, exact=True, top_k=50)
            answer = client.recommend(query, options)
            return [(item.paper.id, item.score) for item in answer.items]
        except grpc.RpcError as error:  # until the profiler has created the view again
            if Refusal.of(error).code != "UNAVAILABLE":
                raise
            return []
        finally:
            client.close()


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("runbook")
    operator = Operator(folder, {"DATA": str(folder / "data"), "BACKUP": str(folder / "backup")})
    operator.run("citewell up --detach --data $DATA --port-base 0")
    try:
        client = operator.client()
        publish(client, [publication for publication, _ in divided(200, 3)])
        client.close()
        yield operator
    finally:
        operator.run("citewell down --data $DATA || true; citewell down --data $DATA.moved || true")


def stuck(operator: Operator) -> str:
    """A frozen service hangs its callers until it is killed."""
    (pid,) = operator.pids("index")
    os.kill(pid, signal.SIGSTOP)
    printed = operator.run(COMMANDS["stuck"], PID=str(pid))
    assert operator.pids("index") != [pid]
    return printed


def doctor(operator: Operator) -> str:
    return operator.run(COMMANDS["doctor"])


def worker(operator: Operator) -> str:
    return operator.run(COMMANDS["worker"])


def backlog(operator: Operator) -> str:
    return operator.run(COMMANDS["backlog"])


def dead_letters(operator: Operator) -> str:
    client = operator.client()
    for title in ("One", "Another one"):
        client.settled(client.publish(Publication("twice", 1, title)).token)
    client.close()
    printed = operator.run(COMMANDS["dead-letters"])
    assert "REVISION_CONFLICT" in printed
    return printed


def disk(operator: Operator) -> str:
    return operator.run(COMMANDS["disk"])


def lost_index(operator: Operator) -> str:
    before = operator.ranking()
    printed = operator.run(COMMANDS["index"])
    wait_until(lambda: operator.ranking() == before, "the ranking of before", 60)
    return printed


def backup_and_restore(operator: Operator) -> str:
    """What was published before the backup comes back with it; what was published after it is gone with the disk."""
    client = operator.client()
    chosen = ingestion_pb2.RecordFeedbackRequest(feedback=feedback_pb2.Feedback(shown=["one", "two"], chosen=["two"]))
    client.ingestion.RecordFeedback(chosen, timeout=30)
    client.close()
    printed = operator.run(COMMANDS["backup"])
    before = operator.ranking()
    operator.run("citewell down --data $DATA")
    shutil.rmtree(operator.data)
    printed += operator.run(COMMANDS["restore"])
    wait_until(lambda: operator.ranking() == before, "the ranking of before", 60)
    assert operator.feedback() == ["one,two"]
    return printed


def restored_ledger_with_a_newer_log(operator: Operator) -> str:
    """Only the ledger was lost: what was published since the backup comes back out of the log."""
    operator.run(COMMANDS["backup"])
    client = operator.client()
    accepted = client.publish(Publication("since-the-backup", 1, "Methods published since the backup"))
    assert client.settled(accepted.token).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE
    client.close()
    without_log = [line for line in COMMANDS["restore"].splitlines() if "log." not in line]
    assert len(COMMANDS["restore"].splitlines()) - len(without_log) == 2
    printed = operator.run("\n".join(without_log))
    client = operator.client()
    assert client.settled(accepted.token).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE
    client.close()
    return printed


def move(operator: Operator) -> str:
    """The query is encoded in fp32 now, so scores differ in the third digit, and near ones change places."""
    before = dict(operator.ranking())
    printed = operator.run(COMMANDS["move"])
    operator.variables["DATA"] += ".moved"

    def near() -> bool:
        after = dict(operator.ranking())
        best = sorted(after, key=after.__getitem__)[-30:]
        return len(after) == len(before) and all(
            before.get(paper) == pytest.approx(after[paper], abs=0.02) for paper in best
        )

    wait_until(near, "nearly the scores of before", 60)
    assert operator.feedback() == ["one,two"]
    return printed


def views(operator: Operator) -> str:
    return operator.run(COMMANDS["views"])


ENTRIES: tuple[Callable[[Operator], str], ...] = (
    backup_and_restore,
    restored_ledger_with_a_newer_log,
    stuck,
    doctor,
    worker,
    backlog,
    dead_letters,
    disk,
    lost_index,
    views,
    move,
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_an_entry_does_what_it_says(
    operator: Operator, entry: Callable[[Operator], str], record_property: Callable[[str, object], None]
) -> None:
    record_property("transcript", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", entry(operator)))
