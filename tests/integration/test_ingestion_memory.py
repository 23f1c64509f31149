"""What ingestion holds while its disk stands still: bounded in bytes, however many large events are sent."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.types.v1 import publication_pb2
from tests.e2e.client import Client

STREAMS, EVENTS, EVENT_MEGABYTES = 6, 24, 6
LIMIT_MEGABYTES = 16


def large(number: int) -> messages.PublishStreamRequest:
    publication = publication_pb2.Publication(paper_id=f"p{number}", revision=1, title="T")
    publication.vectors.extend(publication_pb2.TextVector(values=bytes(1 << 16)) for _ in range(16 * EVENT_MEGABYTES))
    return messages.PublishStreamRequest(publish=messages.PublishRequest(publication=publication))


def peak_megabytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))


def test_large_events_do_not_fill_the_memory_while_the_disk_stands_still(tmp_path: Path) -> None:
    settings = {
        "CITEWELL_INGESTION__CONSUME": "false",
        "CITEWELL_INGESTION__LOG__MOST_WAITING_MEGABYTES": str(LIMIT_MEGABYTES),
        "CITEWELL_INGESTION__STREAM_WINDOW_MEGABYTES": "8",
    }
    stack = Stack(tmp_path, choose_ports(0), settings=settings)
    stack.start(["ingestion"])
    client = Client(stack.addresses)
    answers = Counter[str]()
    delays = list[float]()

    def publish(stream: int) -> None:
        requests: Iterator[messages.PublishStreamRequest] = (large(stream * EVENTS + n) for n in range(EVENTS))
        for answer in client.ingestion.PublishStream(requests, timeout=60):
            answers[answer.error.reason if answer.HasField("error") else "accepted"] += 1
            if answer.error.reason == "OVERLOADED":
                delays.append(answer.error.retry_delay.ToTimedelta().total_seconds())

    try:
        stack.wait(["ingestion"])
        client.ingestion.PublishStream(iter([large(0)]), timeout=30).next()  # warm
        process = stack.processes["ingestion"].pid
        before = peak_megabytes(process)
        with closing(sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            threads = [threading.Thread(target=publish, args=(stream,)) for stream in range(STREAMS)]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60
            while answers["OVERLOADED"] < STREAMS * EVENTS // 2 and time.monotonic() < end:
                time.sleep(0.05)
            other.execute("ROLLBACK")
            for thread in threads:
                thread.join()
        assert answers.total() == STREAMS * EVENTS
        assert answers["OVERLOADED"] >= STREAMS * EVENTS // 2
        assert all(delays)
        sent = STREAMS * EVENTS * EVENT_MEGABYTES
        assert peak_megabytes(process) - before < sent, f"{sent} MiB were sent"  # without limits three times as much
    finally:
        client.close()
        stack.stop(["ingestion"])
