"""`citewell demo-corpus`: an invented corpus on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from citewell.demo.corpus import LEAST_PAPERS, MOST_PAPERS, write


def demo_corpus(
    out: Annotated[Path, typer.Option(help="Folder to write to; files of an earlier world there are replaced.")],
    papers: Annotated[int, typer.Option(min=LEAST_PAPERS, max=MOST_PAPERS, help="How many papers to invent.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed and number give the same files.")] = 7,
) -> None:
    """Invents papers and citation contexts whose right answers are known, in the schema that `load` reads."""
    with Progress("inventing", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task("papers", total=papers)
        try:
            written = write(papers, seed, out, on_paper=lambda: progress.advance(task))
        except OSError as error:
            raise typer.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from None
    typer.echo(f"{out}: {written.papers:,} papers, {written.contexts:,} contexts, {written.queries:,} queries held out")
