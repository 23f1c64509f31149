"""`citewell replay`: a range of the log delivered again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from citewell.client import AsyncCitewell, Replayed
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.failing import WRONG_USAGE, fail

# Events per call: each call ends long before its deadline and before the connection is renewed.
EVENTS_AT_ONCE = 1_000


@calls_services(timeout=120.0)
def replay(
    target: Target,
    partition: Annotated[int | None, typer.Option(min=0, help="One partition; without it all of them.")] = None,
    first: Annotated[int | None, typer.Option("--from", min=0, help="First offset; default: the oldest kept.")] = None,
    end: Annotated[int | None, typer.Option("--to", min=0, help="End offset, exclusive; default: the end.")] = None,
    since: Annotated[datetime | None, typer.Option(help="First time (local time), instead of offsets.")] = None,
    until: Annotated[datetime | None, typer.Option(help="End time, exclusive; default: now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Delivers a range of the log to the ledger again; what was applied is not changed.

    Without options: the whole log. --timeout is the deadline of each call of a thousand events, or of a time range.
    """
    if since and (partition is not None or first is not None or end is not None):
        fail("give either --since and --until, or offsets", WRONG_USAGE)
    if until and not since:
        fail("--until needs --since", WRONG_USAGE)
    if partition is None and (first is not None or end is not None):
        fail("--from and --to need --partition: each partition has offsets of its own", WRONG_USAGE)

    async def work() -> Replayed:
        async with target.client("ingestion") as client:
            if since:
                return await client.replay_times(since.astimezone(), (until or datetime.now()).astimezone())
            return await _by_offsets(client, partition, first, end)

    done = asyncio.run(work())
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        counts = ", ".join(f"{count:,} {name}" for name, count in asdict(done).items() if name != "delivered" and count)
        typer.echo(f"{done.delivered:,} events delivered again{f': {counts}' if counts else ''}")


async def _by_offsets(client: AsyncCitewell, partition: int | None, first: int | None, end: int | None) -> Replayed:
    ranges = []
    partitions = (await client.log()).partitions
    if partition is not None and partition >= len(partitions):
        fail(f"--partition is {partition}; the log has 0 to {len(partitions) - 1}")
    for each in partitions:
        if partition in (None, each.number):
            start = each.first_offset if first is None else first
            ranges.append((each.number, start, each.end_offset if end is None else min(end, each.end_offset)))
    done = Replayed()
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=sum(max(0, last - start) for _, start, last in ranges))
        for number, start, last in ranges:
            while start < last:
                stop = min(start + EVENTS_AT_ONCE, last)
                done += await client.replay(number, start, stop)
                progress.advance(task, stop - start)
                start = stop
    return done
