"""What several of the lab's commands share: options, the cache's default folder, progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from citewell.lab.experiment import OnProgress

Cache = Annotated[Path, typer.Option(help="Where text vectors are kept.", envvar="CITEWELL_LAB_CACHE")]
DEFAULT_CACHE = Path.home() / ".cache" / "citewell" / "lab"


@contextmanager
def progress(console: Console | None = None) -> Iterator[OnProgress]:
    """One progress bar per kind of work, on standard error or on the console given; removed at the end."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield on_progress
