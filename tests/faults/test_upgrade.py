"""An upgrade from an older version with its data, and the way back: rankings and publications survive both.

`make upgrade`. The older version is the commit in CITEWELL_UPGRADE_FROM, or the one named here.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from citewell.commands.stack import Stack, StackError, choose_ports
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.projector import SETTLED_SECONDS
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.publications import Publication
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.faults.events import replay_everything
from tests.servers.missing import missing
from tests.servers.processes import wait_until

ROOT = Path(__file__).parents[2]
FROM = os.environ.get("CITEWELL_UPGRADE_FROM", "27f4cfba9178")
NEWER = ROOT / "services"
FIVE = ("index", "profiler", "reranker", "ingestion", "recommender")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The services' folder of the older version."""
    folder = tmp_path_factory.mktemp("older")
    packed = subprocess.run(["git", "archive", FROM, "services"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        missing(f"the commit {FROM} is not in this repository; set CITEWELL_UPGRADE_FROM to an older one")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder / "services"


@contextmanager
def running(data: Path, services: Path) -> Iterator[Client]:
    """Five services of one version over this data. The older one ranks by the first phase alone."""
    newer = {"CITEWELL_INDEX__SECOND_PHASE": "none"} if services == NEWER else {}
    stack = Stack(data, choose_ports(0), settings={"PYTHONPATH": str(services), **newer})
    try:
        stack.start(FIVE)
        stack.wait(FIVE)
        client = Client(stack.addresses)
        try:
            yield client
        finally:
            client.close()
    finally:
        stack.stop(FIVE[::-1])


def ranking(client: Client) -> list[tuple[str, float]]:
    query = messages.Query(context="earlier work TARGETCIT on methods", title="A draft")
    try:
        answer = client.recommend(query, messages.Options(rerank=False, exact=True, top_k=50))
    except grpc.RpcError:
        return []
    return [] if answer.degraded else [(item.paper.id, round(item.score, 5)) for item in answer.items]


def settled_ranking(client: Client) -> list[tuple[str, float]]:
    """The ranking once the words' statistics, which follow some seconds after the last event, change it no more."""
    last, since = ranking(client), time.monotonic()

    def unchanged() -> bool:
        nonlocal last, since
        now = ranking(client)
        if now != last or not now:
            last, since = now, time.monotonic()
        return time.monotonic() - since > SETTLED_SECONDS + 5

    wait_until(unchanged, "a ranking that changes no more", 120, every=0.5)
    return last


def told(client: Client, paper: str) -> str:
    accepted = client.publish(Publication(paper, 1, f"Methods, as {paper} sees them"))
    assert client.settled(accepted.token).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE
    return accepted.token


@pytest.mark.timeout(600)
def test_an_upgrade_keeps_everything_and_so_does_the_way_back(older: Path, tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with running(data, older) as client:
        publish(client, [publication for publication, _ in divided(200, 9)])
        first = told(client, "before-the-upgrade")
        before = settled_ranking(client)
    shutil.copytree(data, backup)
    with running(data, NEWER) as client:
        wait_until(lambda: ranking(client) == before, "the ranking of before the upgrade", 60)
        assert client.settled(first).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, "tokens stay valid"
        second = told(client, "after-the-upgrade")
        newest = settled_ranking(client)
    _migrated_by_a_newer_version(data / "ledger.sqlite")
    for services in (NEWER, older):
        with pytest.raises(StackError, match="the ledger has schema '9999', this citewell knows up to"):
            running(data, services).__enter__()
    for file in [*data.glob("ledger.sqlite*"), data / "index"]:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.copy(backup / "ledger.sqlite", data / "ledger.sqlite")
    with running(data, older) as client:
        replay_everything(client)
        assert client.settled(second).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, "the log had it"
        wait_until(lambda: ranking(client) == newest, "the ranking of before the way back", 60)


def _migrated_by_a_newer_version(ledger: Path) -> None:
    """Imitates a version with one more migration, by its mark in the ledger."""
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
