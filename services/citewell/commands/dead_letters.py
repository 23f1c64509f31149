"""`citewell dead-letters`: events that can never be applied, and publishing them again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from citewell.client import AsyncCitewell, DeadLetter, PublicationState, Receipt
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.failing import FAILED, WRONG_USAGE, fail

app = typer.Typer(no_args_is_help=True, help="Lists dead letters, and publishes their events again.")

# Each call publishes so many events, well within its deadline.
REDRIVEN_AT_ONCE = 50

ReasonOption = Annotated[str, typer.Option(help="Only those with this reason.")]


@app.command("list")
@calls_services()
def list_(
    target: Target,
    reason: ReasonOption = "",
    most: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1_000,
    as_json: JsonOption = False,
) -> None:
    """Prints one dead letter per line: its id, when it died, its paper and why; --json prints JSON lines."""

    async def work() -> int:
        shown = 0
        async with target.client("ingestion") as client:
            async for letter in client.dead_letters():
                if reason in ("", letter.reason):
                    if shown == most:
                        typer.echo(f"more than {most:,} dead letters: use --most", err=True)
                        break
                    shown += 1
                    typer.echo(_as_json(letter) if as_json else _as_text(letter))
        return shown

    if not asyncio.run(work()):
        typer.echo("no dead letters", err=True)


@app.command()
@calls_services(timeout=60.0)
def redrive(
    target: Target,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids as `dead-letters list` prints them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All dead letters, or all with --reason.")] = False,
    reason: ReasonOption = "",
    wait: Annotated[bool, typer.Option(help="Return when it is settled what became of them.")] = True,
) -> None:
    """Publishes the events of dead letters again, once their cause is mended. Exit code 1: one died again."""
    if bool(ids) == every or (reason and not every):
        fail("give either ids, or --all (with or without --reason)", WRONG_USAGE)
    died = 0

    async def work() -> None:
        nonlocal died
        async with target.client("ingestion") as client:
            chosen = ids or await _latest(client, reason)
            receipts = _redriven(client, chosen)
            if not wait:
                async for receipt in receipts:
                    typer.echo(f"{receipt.event_id} {receipt.token}")
                return
            async for receipt, status in client.settle(receipts):
                died += status.state is PublicationState.DEAD
                told = [receipt.event_id, receipt.token, status.state.value.lower(), status.outcome, status.message]
                typer.echo(" ".join(filter(None, told)))

    asyncio.run(work())
    if died:
        raise typer.Exit(FAILED)


async def _latest(client: AsyncCitewell, reason: str) -> list[str]:
    """One letter an event: the latest, if it died again each time that it was published again."""
    latest: dict[str, DeadLetter] = {}
    async for letter in client.dead_letters():
        latest[letter.redrive_of or letter.id] = letter
    return [letter.id for letter in latest.values() if reason in ("", letter.reason)]


async def _redriven(client: AsyncCitewell, ids: list[str]) -> AsyncIterator[Receipt]:
    for start in range(0, len(ids), REDRIVEN_AT_ONCE):
        for receipt in await client.redrive(ids[start : start + REDRIVEN_AT_ONCE]):
            yield receipt


def _as_text(letter: DeadLetter) -> str:
    when = letter.recorded.isoformat(timespec="seconds")
    return f"{letter.id} {when} {letter.paper_id!r} {letter.reason}: {letter.message}"


def _as_json(letter: DeadLetter) -> str:
    told = {
        "id": letter.id,
        "recorded": letter.recorded.isoformat(),
        "event_id": letter.event_id,
        "paper_id": letter.paper_id,
        "reason": letter.reason,
        "message": letter.message,
        "redrive_of": letter.redrive_of,
    }
    return json.dumps(told, ensure_ascii=False)
