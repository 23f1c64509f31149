"""`citewell publish`: papers and retractions into the event log."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from google.protobuf.json_format import ParseDict, ParseError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from citewell.client import AsyncCitewell, CitewellError, PublicationState, PublicationStatus, Receipt
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.failing import FAILED, fail, told
from citewell.ingestion.v1 import ingestion_pb2

STANDARD_INPUT = "-"


@calls_services(timeout=60.0)
def publish(
    target: Target,
    file: Annotated[str, typer.Argument(help="JSON lines; - reads standard input.")] = STANDARD_INPUT,
    wait: Annotated[bool, typer.Option(help="Return when every event is in every answer, or dead.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Publishes one event per line, many at a time; a file of any size is read as a stream.

    A line is a JSON object: a publication or a retraction, as in the contract (types/v1/publication.proto):

    {"publication": {"paper_id": "p1", "revision": 1, "title": "…", "abstract": "…", "published": {"year": 2025},
    "masked_contexts": [{"text": "As TARGETCIT has shown, …", "cited_id": "p0"}]}}

    {"retraction": {"paper_id": "p1", "revision": 2, "reason": "…"}}

    An "event_id" beside it makes a repetition the same event. Files of papers and contexts (the shape of `citewell
    demo-corpus`) are for `citewell load`, or `citewell load --events`.

    Prints, for each event, its id, its token (for min_watermark) and what became of it. A line that is refused is named
    on standard error, and the others go on. Publishing the same lines again changes nothing.

    --timeout is the deadline of each event. Exit code 1: a line was refused, became a dead letter, or was not
    searchable in time.
    """
    if file == STANDARD_INPUT:
        _run(target, sys.stdin.buffer, "standard input", 0, wait, as_json)
        return
    try:
        with Path(file).open("rb") as stream:
            _run(target, stream, file, Path(file).stat().st_size, wait, as_json)
    except OSError as error:
        fail(f"{file}: {error.strerror}")


def _run(target: Target, stream: BinaryIO, source: str, size: int, wait: bool, as_json: bool) -> None:
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("publishing", total=size or None)
        publishing = _Publishing(source, as_json)

        def counted() -> Iterator[bytes]:
            for line in stream:
                yield line
                progress.update(task, advance=len(line), description=f"{publishing.accepted:,} published")

        async def work() -> None:
            async with target.client("ingestion") as client:
                await publishing.run(client, counted(), wait)

        try:
            asyncio.run(work())
        except CitewellError as error:
            publishing.stopped = f"; stopped: {told(error)}"
    rate = publishing.accepted / max(time.monotonic() - started, 1e-9)
    print(f"citewell: {publishing.summary()}; {rate:,.0f} events/s{publishing.stopped}", file=sys.stderr)
    if publishing.failed:
        raise typer.Exit(FAILED)


@dataclass
class _Publishing:
    """What was published so far. Lines are named by their numbers, which follow the events on their way."""

    source: str
    as_json: bool
    accepted: int = 0
    refused: int = 0
    dead: int = 0
    late: int = 0
    stopped: str = ""
    _sent: deque[int] = field(default_factory=deque)
    _accepted: deque[int] = field(default_factory=deque)

    @property
    def failed(self) -> bool:
        return bool(self.refused or self.dead or self.late or self.stopped)

    def summary(self) -> str:
        counts = {"refused": self.refused, "dead letters": self.dead, "not searchable in time": self.late}
        return ", ".join([f"{self.accepted:,} published", *(f"{n:,} {name}" for name, n in counts.items() if n)])

    async def run(self, client: AsyncCitewell, lines: Iterable[bytes], wait: bool) -> None:
        receipts = self._receipts(client, lines)
        if not wait:
            async for receipt in receipts:
                self._tell(receipt, None)
            return
        async for receipt, status in client.settle(receipts):
            self.dead += status.state is PublicationState.DEAD
            self.late += status.state in (PublicationState.ACCEPTED, PublicationState.APPLIED)
            self._tell(receipt, status)

    async def _receipts(self, client: AsyncCitewell, lines: Iterable[bytes]) -> AsyncIterator[Receipt]:
        async for result in client.publish_all(self._requests(lines)):
            number = self._sent.popleft()
            if isinstance(result, CitewellError):
                self._refuse(number, result.message)
            else:
                self.accepted += 1
                self._accepted.append(number)
                yield result

    def _requests(self, lines: Iterable[bytes]) -> Iterator[ingestion_pb2.PublishRequest]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    request = _request(line)
                except ValueError as error:
                    self._refuse(number, str(error))
                else:
                    self._sent.append(number)
                    yield request

    def _refuse(self, number: int, why: str) -> None:
        self.refused += 1
        print(f"citewell: {self.source}, line {number}: {' '.join(why.split())}", file=sys.stderr)

    def _tell(self, receipt: Receipt, status: PublicationStatus | None) -> None:
        line = self._accepted.popleft()
        if self.as_json:
            told = {"line": line, "event_id": receipt.event_id, "token": receipt.token}
            if status:
                told |= {"state": status.state.value, "outcome": status.outcome, "message": status.message}
            typer.echo(json.dumps(told, ensure_ascii=False))
        else:
            state = (status.state.value.lower(), status.outcome, status.message) if status else ()
            typer.echo(" ".join(filter(None, [receipt.event_id, receipt.token, *state])))


def _request(line: bytes) -> ingestion_pb2.PublishRequest:
    """The event that a line holds; ValueError for any other line."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(told, dict):
        raise ValueError(f"expected a JSON object, found {type(told).__name__}")
    if "event_id" in told:
        told["request_id"] = told.pop("event_id")
    try:
        request = ParseDict(told, ingestion_pb2.PublishRequest())
    except (ParseError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if request.WhichOneof("body") is None:
        raise ValueError('expected {"publication": {…}} or {"retraction": {…}}')
    return request
