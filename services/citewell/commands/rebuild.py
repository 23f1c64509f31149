"""`citewell rebuild`: a second view beside the serving one, and the switch to it."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.views import described, list_views, until_filled
from citewell.profiler.v1 import ledger_pb2 as messages
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.runtime.channels import invoke

app = typer.Typer(no_args_is_help=True, help="Fills a second view while the first one serves, then switches.")

ViewArgument = Annotated[str, typer.Argument(help="A view's name, as `rebuild status` prints it.")]


@app.command()
@calls_services(timeout=3600.0)
def start(
    target: Target,
    encoder: Annotated[str, typer.Option(help="Folder or id of another encoder; empty = the one in use.")] = "",
    alpha: Annotated[float | None, typer.Option(help="α of the profile equation; unset = as it is.")] = None,
    beta: Annotated[float | None, typer.Option(help="β of the profile equation; unset = as it is.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the view is filled.")] = False,
) -> None:
    """Registers a view and starts filling it; `citewell rebuild status` tells how far it is."""
    spec = messages.ViewSpec(encoder=encoder, alpha=alpha, beta=beta)
    request = messages.StartRebuildRequest(spec=spec)

    async def call() -> messages.View:
        async with target.channel("profiler") as channel:
            answer = await invoke(LedgerServiceStub(channel).StartRebuild, request, "rebuild", at_most=60.0)
            if wait:
                await until_filled(channel, answer.view.name, "filling")
            view: messages.View = answer.view
            return view

    typer.echo(described(target.run(call())))


@app.command()
@calls_services()
def status(target: Target, as_json: JsonOption = False) -> None:
    """Prints every view, what is left to do for it, and which one serves."""

    async def call() -> list[messages.View]:
        async with target.channel("profiler") as channel:
            return await list_views(channel)

    views = target.run(call())
    if as_json:
        told = [MessageToDict(view, preserving_proto_field_name=True) for view in views]
        typer.echo(json.dumps(told, indent=2))
        return
    for view in views:
        typer.echo(described(view))


@app.command()
@calls_services(timeout=3600.0)
def switch(target: Target, view: ViewArgument) -> None:
    """Serves a view once nothing is left to fill in; the one before stays, for a way back."""

    async def call() -> messages.SwitchViewResponse:
        async with target.channel("profiler") as channel:
            await until_filled(channel, view, "filling")
            # What is published meanwhile may leave a little to do: the service waits for that.
            request = messages.SwitchViewRequest(view=view)
            answer: messages.SwitchViewResponse = await invoke(
                LedgerServiceStub(channel).SwitchView, request, "switch", at_most=60.0
            )
            return answer

    answer = target.run(call())
    typer.echo(f"{described(answer.view)}; before: {answer.previous_view}")


@app.command()
@calls_services(timeout=300.0)
def drop(target: Target, view: ViewArgument) -> None:
    """Deletes a view that is not served, from the ledger and from the index."""

    async def call() -> None:
        async with target.channel("profiler") as channel:
            await invoke(LedgerServiceStub(channel).DropView, messages.DropViewRequest(view=view), "drop")

    target.run(call())
    typer.echo(f"{view} is dropped")
