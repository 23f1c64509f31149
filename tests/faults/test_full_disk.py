"""A disk that is really full: log, ledger and index on a small file system. Needs root, to mount it.

Searches go on, writes are refused with the reason, nothing acknowledged is lost, and all goes on by itself once there
is room. `make runbook`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.publications import Publication
from tests.demo_world import divided
from tests.e2e.client import Client, Refusal
from tests.e2e.conftest import publish
from tests.servers.missing import missing
from tests.servers.processes import wait_until

pytestmark = pytest.mark.fault

SERVICES = ("index", "profiler", "reranker", "ingestion", "recommender")
MEGABYTES = 700


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", folder]).returncode:
        missing("a small file system cannot be mounted: run as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Writes zeros until not a byte is free."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


@pytest.mark.timeout(300)
def test_a_full_disk_stops_writes_with_a_reason_and_nothing_is_lost(
    small_disk: Path, record_property: Callable[[str, object], None]
) -> None:
    stack = Stack(small_disk / "data", choose_ports(0))
    client = Client(stack.addresses)
    try:
        stack.start(SERVICES)
        stack.wait(SERVICES)
        world = list(divided(200, 13))
        publish(client, [publication for publication, _ in world])
        query = next(asked.query for _, some in world for asked in some)
        fill(small_disk / "ballast")
        tokens, reasons = [], set()

        def refused() -> bool:
            try:
                body = Publication(f"full-{len(tokens)}", 1, "Published on a full disk", 5_000 * "word ")
                tokens.append(client.publish(body).token)
            except grpc.RpcError as error:
                reasons.add((Refusal.of(error).code, Refusal.of(error).reason))
                return True
            return False

        wait_until(refused, "Publish is refused", 60)
        assert reasons == {("RESOURCE_EXHAUSTED", "STORAGE_FULL")}
        assert client.recommend(query, messages.Options(rerank=False)).items, "searches go on"
        (small_disk / "ballast").unlink()
        room = time.monotonic()
        wait_until(lambda: not refused(), "Publish works again", 60)
        for token in tokens:
            assert client.settled(token, seconds=90).state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE
        record_property("acknowledged_meanwhile", len(tokens) - 1)
        record_property("seconds_to_recover", round(time.monotonic() - room, 1))
        for service, process in stack.processes.items():
            assert process.poll() is None, f"the {service} ended"
    finally:
        client.close()
        stack.stop(SERVICES[::-1])
