"""`citewell restore`: what must be done after a ledger came back from a backup."""

from __future__ import annotations

from typing import Annotated

import typer

from citewell.commands.calls import Target, calls_services
from citewell.commands.views import until_filled
from citewell.profiler.v1 import ledger_pb2 as messages
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.runtime.channels import invoke
from citewell.types.messages import position_from_message

app = typer.Typer(no_args_is_help=True, help="Adopts a ledger that was restored from a backup.")


@app.callback()
def restore() -> None:
    """Adopts a ledger that was restored from a backup."""


@app.command()
@calls_services(timeout=3600.0)
def adopt(
    target: Target,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    wait: Annotated[bool, typer.Option(help="Return when the index holds what the ledger says.")] = True,
) -> None:
    """Tells the profiler that its ledger is a restored backup: every object is written to a fresh index view.

    Prints up to which position each partition is applied: events after it are delivered again by the workers, or by
    `citewell replay`.
    """
    if not yes:
        typer.confirm("The index is filled again from the ledger, which takes as long as a rebuild. Go on?", abort=True)

    async def call() -> messages.AdoptRestoredLedgerResponse:
        async with target.channel("profiler") as channel:
            request = messages.AdoptRestoredLedgerRequest()
            method = LedgerServiceStub(channel).AdoptRestoredLedger
            answer: messages.AdoptRestoredLedgerResponse = await invoke(method, request, "adopt", at_most=300.0)
            if wait:
                await until_filled(channel, description="writing the index")
            return answer

    answer = target.run(call())
    typer.echo(f"the ledger's epoch is now {answer.epoch}")
    for message in answer.applied:
        at = position_from_message(message)
        typer.echo(f"log {at.log_id}, partition {at.partition}: applied up to offset {at.offset}")
