"""`citewell load`: loads a corpus from files into the ledger.

By default publications go straight to the ledger (LedgerService.LoadPublications) and not through the log. Such
publications have no position in the log and move no watermark. Their event ids are hashes of paper, revision and
content, and the ledger decides by revision as for any event. So loading twice, or in both ways at once, ends in the
same state. Keep the files: a ledger that is rebuilt from the log alone lacks what was loaded in this way. With --events
each publication is an event in the log, like a publisher's.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Protocol

import grpc
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from citewell.client import AsyncCitewell
from citewell.commands.calls import Target, calls_services
from citewell.commands.failing import WRONG_USAGE, fail
from citewell.commands.views import list_views
from citewell.corpora.formats.registry import FORMATS
from citewell.corpora.joining import JoinedCorpus, state_name
from citewell.corpora.readers import SPLITS, Reject
from citewell.corpora.spilling import Corpus, input_hash
from citewell.corpora.staging import Loadable, Staging
from citewell.ingestion.v1 import ingestion_pb2
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc
from citewell.runtime.channels import invoke
from citewell.runtime.errors import CitewellError
from citewell.types.messages import event_to_message
from citewell.types.v1 import publication_pb2

CHUNK_PUBLICATIONS, CHUNK_BYTES = 256, 8 << 20
# The profiler encodes one chunk while it writes the one before.
IN_FLIGHT = 2
LOOK_AGAIN_SECONDS = 0.5
LOAD_SECONDS = 7 * 86_400.0
"""A load takes as long as it takes; every chunk has a deadline of its own."""
CHUNK_SECONDS = 600.0

_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="NAME",
        help="Stands in the ids of papers that are known by their file's name alone, file:NAME/…; tells folders apart.",
    ),
]

Taken = tuple[Counter[str], list[Reject]]
"""How many had which outcome, and those refused."""
Chunk = list[tuple[Loadable, publication_pb2.PublicationEvent]]


class Road(Protocol):
    """A way for publications into the ledger."""

    async def take(self, chunk: Chunk) -> Taken:
        """Answers when the chunk is durable."""

    async def left(self) -> int:
        """How much of what was accepted is not searchable yet."""


class BulkRoad:
    """Sends publications straight to the ledger."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel, self._stub = channel, ledger_pb2_grpc.LedgerServiceStub(channel)

    async def take(self, chunk: Chunk) -> Taken:
        async def requests() -> AsyncIterator[ledger_pb2.LoadPublicationsRequest]:
            yield ledger_pb2.LoadPublicationsRequest(events=[message for _, message in chunk])

        response = await invoke(self._stub.LoadPublications, requests(), "load", at_most=CHUNK_SECONDS)
        sources = {loadable.event.event_id: loadable.source for loadable, _ in chunk}
        refused = [
            replace(sources[result.event_id], reason=f"{result.reason}: {result.message}")
            for result in response.rejected
        ]
        counts = {name: getattr(response, name) for name in ("applied", "duplicates", "superseded")}
        return Counter(counts), refused

    async def left(self) -> int:
        return sum(view.marks + view.encode_marks for view in await list_views(self._channel) if view.serving)


class EventRoad:
    """Publishes to the log, as any publisher does."""

    def __init__(self, client: AsyncCitewell) -> None:
        self._client = client

    async def take(self, chunk: Chunk) -> Taken:
        requests = [
            ingestion_pb2.PublishRequest(request_id=message.event_id, publication=message.publication)
            if message.HasField("publication")
            else ingestion_pb2.PublishRequest(request_id=message.event_id, retraction=message.retraction)
            for _, message in chunk
        ]
        counts: Counter[str] = Counter()
        refused: list[Reject] = []
        answers = self._client.publish_all(requests)
        for loadable, _ in chunk:
            answer = await anext(answers)
            if isinstance(answer, CitewellError):
                refused.append(replace(loadable.source, reason=f"{answer.reason}: {answer.message}"))
            else:
                counts["published"] += 1
        return counts, refused

    async def left(self) -> int:
        return sum(partition.behind for partition in (await self._client.log()).partitions)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


@calls_services(timeout=LOAD_SECONDS)
def load(
    target: Target,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|FORMAT",
            help="A folder with papers and contexts as .jsonl, .jsonl.gz or .json; "
            f"or the format of the folder that follows, one of {', '.join(FORMATS)}.",
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Behind a format: its folder."),
    ] = None,
    named: SourceOption = "",
    split: Annotated[str, typer.Option(help="Only the contexts of this split's citing papers, e.g. train.")] = "",
    events: Annotated[bool, typer.Option("--events", help="Publish to the log instead of bulk loading.")] = False,
    wait: Annotated[bool, typer.Option(help="Return when everything is searchable.")] = True,
    rejects: Annotated[
        Path | None, typer.Option(help="Where to write what was left out; default: rejects.jsonl in the data folder.")
    ] = None,
    bulk: Annotated[
        bool,
        typer.Option(
            "--bulk",
            help="FOLDER is what `citewell bulk build` wrote: write it into the empty ledger that "
            "CITEWELL_PROFILER__LEDGER_URL names, while no profiler runs.",
        ),
    ] = False,
) -> None:
    """Loads papers with the contexts in which they cite. Killed half-way, the same command goes on where it was.

    Lines that cannot be used are left out and written down with file, line and reason. In a foreign format a paper's id
    is its DOI, else its arXiv id, else the source's own; see deploy/docs/corpora.md.
    """
    if named and folder is None:
        fail("--source is for foreign formats: the papers of other folders have ids of their own", WRONG_USAGE)
    if bulk:
        if folder is not None or split or events:
            fail("--bulk takes a folder alone: no format, --split or --events", WRONG_USAGE)
        typer.echo(load_built(Path(source)))
    elif folder is None:
        typer.echo(load_corpus(target, Path(source), split, events=events, wait=wait, rejects=rejects))
    else:
        if split:
            fail("--split is for folders with splits of their own, not for foreign formats", WRONG_USAGE)
        corpus = open_foreign(target, source, folder, "load", named=named)
        typer.echo(take_in(target, corpus, events=events, wait=wait, rejects=rejects))


def load_built(folder: Path) -> str:
    """Loads what `citewell bulk build` wrote; a line that says what was loaded, and which view will serve it."""
    try:
        from citewell.bulk.loading import load_configured
    except ImportError as error:
        fail(f"{error.name} is missing: pip install 'citewell[bulk]'", WRONG_USAGE)
    started = time.monotonic()
    try:
        with Progress("{task.description}", BarColumn(), MofNCompleteColumn(), _Rate()) as progress:
            bars: dict[str, TaskID] = {}

            def on_rows(table: str, done: int, count: int) -> None:
                if table not in bars:
                    bars[table] = progress.add_task(table, total=count)
                progress.update(bars[table], completed=done, total=count)

            manifest, view, ledger = load_configured(folder, on_rows)
    except ValueError as error:
        fail(str(error))
    seconds = time.monotonic() - started
    told = f"{manifest.papers:,} papers, {manifest.citations:,} citations in {seconds:,.1f} s into {ledger}"
    when = "serves" if view.serving else "takes over"
    return f"{told}; view {view.name} {when} when a profiler has filled the index"


def load_corpus(
    target: Target,
    folder: Path,
    split: str = "",
    *,
    events: bool = False,
    wait: bool = True,
    rejects: Path | None = None,
) -> str:
    """Loads a folder's corpus with progress bars; a line that says what was loaded, how fast, and what was left out."""
    if split and split not in SPLITS:
        fail(f"--split is {split!r}; expected one of {', '.join(SPLITS)}", WRONG_USAGE)
    _require_folder(folder)
    state = target.data / "load" / f"{input_hash(folder, split, events)}.sqlite"
    return take_in(target, Corpus(folder, state, split), events=events, wait=wait, rejects=rejects)


def open_foreign(
    target: Target, name: str, folder: Path, purpose: str, settle_seconds: float = 0, *, named: str = ""
) -> JoinedCorpus:
    """The corpus in a folder of a foreign format."""
    if name not in FORMATS:
        fail(f"the format is {name!r}; expected one of {', '.join(FORMATS)}", WRONG_USAGE)
    _require_folder(folder)
    if named and not _SOURCE.fullmatch(named):
        fail(f"--source is {named!r}; expected up to 64 letters, digits, '.', '_' or '-'", WRONG_USAGE)
    form = FORMATS[name]
    state = target.data / purpose / f"{state_name(folder, form, named)}.sqlite"
    return JoinedCorpus(folder, state, form, settle_seconds, source=named, names=target.data / "file-names.sqlite")


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        fail(f"FOLDER is '{folder}', which is no folder", WRONG_USAGE)


def take_in(target: Target, corpus: Staging, *, events: bool, wait: bool, rejects: Path | None) -> str:
    """Loads a corpus and forgets what was staged. What goes wrong ends the command with one line."""
    try:
        summary = stage_and_load(target, corpus, events=events, wait=wait, rejects=rejects)
    except (FileNotFoundError, ValueError) as error:
        corpus.close(forget=not corpus.ready)
        fail(str(error))
    except (CitewellError, KeyboardInterrupt) as error:
        corpus.close(forget=False)
        fail(f"{error or 'interrupted'}; run the same command again to go on")
    corpus.close(forget=True)
    return summary


def stage_and_load(target: Target, corpus: Staging, *, events: bool, wait: bool, rejects: Path | None) -> str:
    """Stages what is new and loads it, with progress bars; a line that says what became of it."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), _Rate(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        if not corpus.ready:
            reading = progress.add_task("reading", total=None)
            corpus.spill(lambda: progress.advance(reading))
            progress.remove_task(reading)
        summary = target.run(_load(corpus, target, events, wait, progress))
    refused = rejects or target.data / "rejects.jsonl"
    if count := corpus.write_rejects(refused):
        summary += f"; {count:,} left out, see {refused}"
    return summary


@asynccontextmanager
async def _road(target: Target, events: bool) -> AsyncIterator[Road]:
    if events:
        async with target.client("ingestion") as client:
            yield EventRoad(client)
    else:
        async with target.channel("profiler") as channel:
            yield BulkRoad(channel)


async def _load(corpus: Staging, target: Target, events: bool, wait: bool, progress: Progress) -> str:
    papers, contexts, loaded = corpus.counts()
    started = time.monotonic()
    outcomes: Counter[str] = Counter()
    task = progress.add_task("loading papers", total=papers, completed=loaded)
    async with _road(target, events) as road:
        under_way: deque[tuple[Chunk, asyncio.Task[Taken]]] = deque()

        async def finish_first() -> None:
            chunk, taking = under_way[0]
            counts, refused = await taking
            under_way.popleft()
            outcomes.update(counts)
            corpus.loaded(chunk[-1][0].number, refused)
            progress.update(task, completed=chunk[-1][0].number)

        try:
            for chunk in _chunks(corpus.publications()):
                under_way.append((chunk, asyncio.create_task(road.take(chunk))))
                if len(under_way) == IN_FLIGHT:
                    await finish_first()
            while under_way:
                await finish_first()
        finally:
            for _, taking in under_way:
                taking.cancel()
            await asyncio.gather(*(taking for _, taking in under_way), return_exceptions=True)
        progress.update(task, completed=papers)
        seconds = time.monotonic() - started
        if wait:
            await _until_searchable(road, progress)
    counted = ", ".join(f"{count:,} {name}" for name, count in outcomes.items() if count) or "nothing new"
    rate = (papers - loaded) / seconds
    return f"{papers:,} papers, {contexts:,} contexts: {counted}; {rate:,.0f} papers/s in {seconds:,.1f} s"


async def _until_searchable(road: Road, progress: Progress) -> None:
    most = left = await road.left()
    task = progress.add_task("becoming searchable", total=most)
    while left:
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        left = await road.left()
        most = max(most, left)
        progress.update(task, total=most, completed=most - left)


def _chunks(publications: Iterator[Loadable]) -> Iterator[Chunk]:
    chunk: Chunk = []
    size = 0
    for loadable in publications:
        message = event_to_message(loadable.event)
        if chunk and (len(chunk) == CHUNK_PUBLICATIONS or size + message.ByteSize() > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((loadable, message))
        size += message.ByteSize()
    if chunk:
        yield chunk
