"""`citewell rebuild`: a second view beside the serving one, and the switch to it."""

from __future__ import annotations

from typing import Annotated

import typer

from citewell.commands.calls import AddressOption, DataOption, TimeoutOption, channel_to, run
from citewell.commands.stack import DEFAULT_DATA
from citewell.profiler.v1 import ledger_pb2 as messages
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.runtime.channels import invoke

app = typer.Typer(no_args_is_help=True, help="Fills a second view while the first one serves, then switches.")


@app.command()
def start(
    encoder: Annotated[str, typer.Option(help="Folder or id of another encoder; empty = the one in use.")] = "",
    alpha: Annotated[float | None, typer.Option(help="α of the profile equation; unset = as it is.")] = None,
    beta: Annotated[float | None, typer.Option(help="β of the profile equation; unset = as it is.")] = None,
    data: DataOption = DEFAULT_DATA,
    address: AddressOption = "",
    timeout: TimeoutOption = 60.0,
) -> None:
    """Registers the view and starts filling it; `citewell rebuild status` tells how far it is."""
    spec = messages.ViewSpec(encoder=encoder, alpha=alpha, beta=beta)
    request = messages.StartRebuildRequest(spec=spec)

    async def call() -> messages.View:
        async with channel_to("profiler", data, address) as channel:
            answer = await invoke(LedgerServiceStub(channel).StartRebuild, request, "rebuild")
            view: messages.View = answer.view
            return view

    typer.echo(_described(run(call(), timeout)))


@app.command()
def status(data: DataOption = DEFAULT_DATA, address: AddressOption = "", timeout: TimeoutOption = 30.0) -> None:
    """Prints every view, what is left to do for it, and which one serves."""

    async def call() -> list[messages.View]:
        async with channel_to("profiler", data, address) as channel:
            answer = await invoke(LedgerServiceStub(channel).ListViews, messages.ListViewsRequest(), "views")
            return list(answer.views)

    for view in run(call(), timeout):
        typer.echo(_described(view))


@app.command()
def switch(
    view: Annotated[str, typer.Argument(help="Name of the view to serve.")],
    data: DataOption = DEFAULT_DATA,
    address: AddressOption = "",
    timeout: TimeoutOption = 3600.0,
) -> None:
    """Serves the view once nothing is left to fill in; the one before stays for a way back."""
    request = messages.SwitchViewRequest(view=view)

    async def call() -> messages.SwitchViewResponse:
        async with channel_to("profiler", data, address) as channel:
            answer: messages.SwitchViewResponse = await invoke(LedgerServiceStub(channel).SwitchView, request, "switch")
            return answer

    answer = run(call(), timeout)
    typer.echo(f"{_described(answer.view)}; before: {answer.previous_view}")


def _described(view: messages.View) -> str:
    left = f"{view.marks:,} objects to project, {view.encode_marks:,} texts to encode"
    return f"{view.name}: {'serving, ' if view.serving else ''}α={view.alpha:g} β={view.beta:g}, {left}"
