"""The worker's client of the ledger against a gRPC server that hangs or refuses as each test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from citewell.ingestion import ledger_client
from citewell.ingestion.ledger_client import LedgerClient
from citewell.ingestion.logs.event_log import Record
from citewell.ingestion.worker import ApplyTimedOut
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc
from citewell.runtime.channels import open_channel
from citewell.runtime.errors import FailedPrecondition, Unavailable
from citewell.scholarly.limits import MAX_EVENT_BYTES
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from citewell.types.v1 import publication_pb2


class Ledger(ledger_pb2_grpc.LedgerServiceServicer):
    """Never ends an application; answers about events only if it `answers`."""

    def __init__(self, answers: bool) -> None:
        self.answers = answers

    async def ApplyPublications(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def GetEventState(self, request: Any, context: Any) -> ledger_pb2.GetEventStateResponse:
        if not self.answers:
            await asyncio.Event().wait()
        return ledger_pb2.GetEventStateResponse()


@asynccontextmanager
async def client_of(ledger: Ledger, apply_seconds: float = 0.3) -> AsyncIterator[LedgerClient]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 20)])
    ledger_pb2_grpc.add_LedgerServiceServicer_to_server(ledger, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        yield LedgerClient(channel, apply_seconds)
    finally:
        await channel.close()
        await server.stop(0)


def record(value: bytes, key: str = "key") -> Record:
    return Record(LogPosition("log", 0, 7), key, value, {}, datetime.now(UTC))


def event(**more: Any) -> bytes:
    publication = publication_pb2.Publication(paper_id="p", revision=1, title="T")
    return publication_pb2.PublicationEvent(publication=publication, **more).SerializeToString()


async def test_an_application_that_takes_too_long_is_told_from_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(Ledger(answers=True)) as client:
        with pytest.raises(ApplyTimedOut, match=r"1 events within 0\.3 s"):
            await client.apply([record(event())])
    monkeypatch.setattr(ledger_client, "PROBE_SECONDS", 0.3)
    async with client_of(Ledger(answers=False)) as client:
        with pytest.raises(Unavailable):
            await client.apply([record(event())])


async def test_a_batch_larger_than_a_message_says_which_setting_is_too_small() -> None:
    publication = publication_pb2.Publication(paper_id="p", revision=1, title="T", abstract="x" * (2 << 20))
    value = publication_pb2.PublicationEvent(publication=publication).SerializeToString()
    async with client_of(Ledger(answers=True), apply_seconds=30.0) as client:
        with pytest.raises(FailedPrecondition, match="MAX_MESSAGE_MEGABYTES") as caught:
            await client.apply([record(value)])
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize(
    ("value", "reason", "message"),
    [
        (b"\xff\xff", "NOT_AN_EVENT", "2 bytes"),
        (b"", "NOT_AN_EVENT", "0 bytes"),
        (event()[:-1], "NOT_AN_EVENT", "PublicationEvent"),
        (publication_pb2.PublicationEvent(event_id="e").SerializeToString(), "NOT_AN_EVENT", "PublicationEvent"),
        (event(event_id="e" * 257), "INVALID_FIELD", "event_id"),
        (event(event_id="e\x00"), "INVALID_FIELD", "event_id"),
        (event() + b"\xa2\x06" + b"\x80\x80\x80\x04" + bytes(MAX_EVENT_BYTES), "EVENT_TOO_LARGE", "at most 8388608"),
    ],
)
async def test_what_cannot_be_sent_is_dead_without_asking(value: bytes, reason: str, message: str) -> None:
    async with client_of(Ledger(answers=False)) as client:
        [verdict] = await client.apply([record(value, key="k" * 1000)])
    assert (verdict.outcome, verdict.reason, verdict.event_id) == (Outcome.DEAD, reason, "log-0-7")
    assert message in verdict.message
    assert len(verdict.message) < 300
    assert len(verdict.paper_id) <= 256
