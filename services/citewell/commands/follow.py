"""`citewell follow`: publishes the papers of files as they come into a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from citewell.commands.calls import Target, calls_services
from citewell.commands.failing import WRONG_USAGE, fail
from citewell.commands.load import LOAD_SECONDS, SourceOption, open_foreign, stage_and_load
from citewell.corpora.formats.registry import FORMATS
from citewell.runtime.errors import CitewellError

_IN_PIECES = "s2ag"
_FOLLOWED = ", ".join(name for name in FORMATS if name != _IN_PIECES)


@calls_services(timeout=LOAD_SECONDS)
def follow(
    target: Target,
    source: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {_FOLLOWED}.")],
    folder: Annotated[Path, typer.Argument(help="Where files come in, at any depth.")],
    named: SourceOption = "",
    every: Annotated[float, typer.Option(help="Seconds between looks at the folder.", min=0.1)] = 5.0,
    settle: Annotated[float, typer.Option(help="A file is complete when unchanged for so many seconds.", min=0)] = 2.0,
    bulk: Annotated[bool, typer.Option("--bulk", help="Load past the log; see `citewell load`.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Publish what is there and return.")] = False,
) -> None:
    """Publishes the papers of new and changed files until it is interrupted.

    Started again, it goes on where it was. A changed file is a new revision of its papers. References find the papers
    of all files that came before. While the services do not answer, it waits. Files are never changed or deleted.
    """
    if source == _IN_PIECES:
        fail(f"the citations of {_IN_PIECES} come in files of their own; load a whole release instead", WRONG_USAGE)
    corpus = open_foreign(target, source, folder, "follow", 0 if once else settle, named=named)
    try:
        while True:
            try:
                if corpus.files() or _is_unfinished(corpus.counts()):
                    typer.echo(stage_and_load(target, corpus, events=not bulk, wait=once, rejects=None))
            except CitewellError as error:
                if once:
                    fail(str(error))
                typer.echo(f"citewell: {error}; trying again", err=True)
            if once:
                return
            time.sleep(every)
    except KeyboardInterrupt:
        typer.echo("citewell: stopped; the same command goes on from here", err=True)
    finally:
        corpus.close(forget=False)


def _is_unfinished(counts: tuple[int, int, int]) -> bool:
    papers, _, loaded = counts
    return loaded < papers
