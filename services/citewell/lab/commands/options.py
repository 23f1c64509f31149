"""What several of the lab's commands share: options, the cache's default folder, progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from citewell.corpora.readers import SPLITS
from citewell.lab.protocol import Leak, Mode
from citewell.runtime.errors import CitewellError

# Not at run time: `citewell export` shares this module and runs without the lab's packages.
if TYPE_CHECKING:
    from citewell.lab.experiment import OnProgress


def writable(path: Path | None) -> Path | None:
    """Makes the folder of a result at the start, so that hours of work do not end at a folder that is missing."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder; expected a file")
    return path


def _evaluated(split: str) -> str:
    if split not in SPLITS[1:]:
        raise typer.BadParameter(f"{split!r} is no split to evaluate on; expected {' or '.join(SPLITS[1:])}")
    return split


Cache = Annotated[Path, typer.Option(help="Where text vectors are kept.", envvar="CITEWELL_LAB_CACHE")]
Data = Annotated[Path, typer.Argument(help="Folder of one data set: papers, contexts, splits.", exists=True)]
TheMode = Annotated[Mode, typer.Option("--mode", help="Which protocol the figures follow.")]
Split = Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS[1:])}.", callback=_evaluated)]
Encoder = Annotated[str, typer.Option(help="ENC1: a folder, a Hugging Face id, or the packaged default.")]
PaperTokens = Annotated[int, typer.Option(help="Tokens kept of a title and abstract; 0 is the model's limit.")]
ContextTokens = Annotated[int, typer.Option(help="Tokens kept of a context; 0 is the model's limit.")]
QueryMapFile = Annotated[
    str, typer.Option("--query-map", help="HYBRID's query map: a file, or none; by default the package's, if any.")
]
TermWeightsFile = Annotated[
    str, typer.Option("--term-weights", help="Learned weights of the query's words: packaged, none, or a file.")
]
WindowEncoderFolder = Annotated[
    str,
    typer.Option("--window-encoder", help="The encoder of the words around the marker: packaged, none, or a folder."),
]
JsonOut = Annotated[Path | None, typer.Option("--json", help="Write the figures here as well.", callback=writable)]
SEED = 2026
"""Of samples and resamplings where the command names none."""
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


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Turns a broken protocol into exit code 2, and what the user can mend into 1, each with one line."""
    try:
        yield
    except Leak as leak:
        typer.echo(f"The protocol is broken, no figures: {leak}", err=True)
        raise typer.Exit(2) from None
    except (ValueError, OSError, CitewellError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
