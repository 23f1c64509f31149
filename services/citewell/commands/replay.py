"""`citewell replay`: a range of the log delivered again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from citewell.client import AsyncCitewell, Replayed
from citewell.client.results import COUNTS
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.failing import WRONG_USAGE, fail


@calls_services(timeout=120.0)
def replay(
    target: Target,
    partition: Annotated[int | None, typer.Option(min=0, help="One partition; without it all of them.")] = None,
    first: Annotated[int | None, typer.Option("--from", min=0, help="First offset; default: the oldest kept.")] = None,
    end: Annotated[int | None, typer.Option("--to", min=0, help="End offset, exclusive; default: the end.")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="First time, such as 2025-01-31T12:00 (local time), instead of offsets.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="End time, exclusive; default: now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Delivers a range of the log to the ledger again; what was applied is not changed.

    Without options: the whole log. --timeout is the deadline of each page of a thousand events.
    """
    if since and (partition is not None or first is not None or end is not None):
        fail("give either --since and --until, or offsets", WRONG_USAGE)
    if until and not since:
        fail("--until needs --since", WRONG_USAGE)
    if partition is None and (first is not None or end is not None):
        fail("--from and --to need --partition: each partition has offsets of its own", WRONG_USAGE)
    if first is not None and end is not None and end < first:
        fail(f"--to is {end}; expected at least --from, {first}", WRONG_USAGE)

    async def work() -> Replayed:
        async with target.client("ingestion") as client:
            if since:
                pages = client.replay_times(since.astimezone(), (until or datetime.now()).astimezone())
                return await _counted([("replaying", pages)])
            return await _counted(await _by_offsets(client, partition, first, end))

    done = asyncio.run(work())
    counts = {name: getattr(done, name) for name in COUNTS}
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        outcomes = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name != "delivered" and count)
        typer.echo(f"{done.delivered:,} events delivered again{f': {outcomes}' if outcomes else ''}")


async def _by_offsets(
    client: AsyncCitewell, partition: int | None, first: int | None, end: int | None
) -> list[tuple[str, AsyncIterator[Replayed]]]:
    """The pages of each partition's range, named."""
    partitions = (await client.log()).partitions
    if partition is not None and partition >= len(partitions):
        fail(f"--partition is {partition}; the log has 0 to {len(partitions) - 1}")
    ranges = []
    for each in partitions:
        if partition in (None, each.number):
            start = each.first_offset if first is None else first
            stop = each.end_offset if end is None else min(end, each.end_offset)
            ranges.append((f"partition {each.number}", client.replay(each.number, start, max(start, stop))))
    return ranges


async def _counted(ranges: list[tuple[str, AsyncIterator[Replayed]]]) -> Replayed:
    """All pages together, with a progress bar for each range."""
    total = Replayed()
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for name, pages in ranges:
            task, done = progress.add_task(name, total=None), 0
            async for page in pages:
                total += page
                done += page.delivered
                progress.update(task, completed=done, total=done + page.remaining)
    return total
