"""The profiler's views as commands see them: listed, described, and waited for with a progress bar."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from citewell.profiler.v1 import ledger_pb2 as messages
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke
from citewell.runtime.errors import NotFound

LOOK_AGAIN_SECONDS = 0.5
CALL_SECONDS = 30.0


async def list_views(channel: grpc.aio.Channel) -> list[messages.View]:
    """Every view, and what is left to do for it."""
    with deadlines.within(CALL_SECONDS):
        answer = await invoke(LedgerServiceStub(channel).ListViews, messages.ListViewsRequest(), "views")
    return list(answer.views)


async def until_filled(channel: grpc.aio.Channel, name: str = "", description: str = "projecting") -> None:
    """Returns when nothing is left to do for a view (empty: for the serving one); asks in short calls."""
    columns: tuple[Any, ...] = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        most = 0
        while left := _left(await list_views(channel), name):
            most = max(most, left)
            progress.update(task, total=most, completed=most - left)
            deadlines.budget(description, LOOK_AGAIN_SECONDS)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _left(views: list[messages.View], name: str) -> int:
    for view in views:
        if view.name == name if name else view.serving:
            return view.marks + view.encode_marks
    known = ", ".join(view.name for view in views) or "none"
    raise NotFound(f"there is no view {name!r}; there are {known}" if name else "no view is serving")


def described(view: messages.View) -> str:
    """A view in one line."""
    left = f"{view.marks:,} objects to project, {view.encode_marks:,} texts to encode"
    return f"{view.name}: {'serving, ' if view.serving else ''}α={view.alpha:g} β={view.beta:g}, {left}"
