"""`citewell publish`: papers and retractions into the event log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import Parse, ParseError

from citewell.commands.calls import AddressOption, DataOption, TimeoutOption, channel_to, run
from citewell.commands.failing import fail
from citewell.commands.stack import DEFAULT_DATA
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.runtime.channels import invoke


def publish(
    file: Annotated[Path | None, typer.Argument(help="JSON lines; nothing reads standard input.")] = None,
    wait: Annotated[bool, typer.Option(help="Return when every answer knows them.")] = True,
    data: DataOption = DEFAULT_DATA,
    address: AddressOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Publishes one event a line: {"publication": {"paper_id": …, "revision": 1, "title": …}} or {"retraction": {…}}.

    Prints for each its token, for `min_watermark`, and what became of it.
    """
    try:
        text = file.read_text(encoding="utf-8") if file else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file or 'standard input'}: {error}")
    if run(_publish_all(_requests(text, str(file or "standard input")), wait, data, address), timeout):
        raise typer.Exit(1)


def _requests(text: str, source: str) -> Iterator[messages.PublishRequest]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield Parse(line, messages.PublishRequest())
            except ParseError as error:
                fail(f"{source}, line {number}: {error}")


async def _publish_all(requests: Iterator[messages.PublishRequest], wait: bool, data: Path, address: str) -> int:
    """How many became dead letters."""
    async with channel_to("ingestion", data, address) as channel:
        stub = IngestionServiceStub(channel)
        accepted = [await invoke(stub.Publish, request, "publish") for request in requests]
        dead = 0
        for each in accepted:
            state = ""
            if wait:
                asked = messages.GetPublicationStatusRequest(token=each.token, wait=True)
                status = await invoke(stub.GetPublicationStatus, asked, "status")
                dead += status.state == messages.PUBLICATION_STATE_DEAD
                name = messages.PublicationState.Name(status.state).removeprefix("PUBLICATION_STATE_").lower()
                state = " ".join(filter(None, [name, status.outcome, status.message]))
            typer.echo(f"{each.event_id} {each.token} {state}".rstrip())
        return dead
