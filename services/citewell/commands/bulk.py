"""`citewell bulk`: builds a ledger's rows from Parquet with Spark; `citewell load --bulk` loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from citewell.bulk.embedding import DEFAULT_ENCODER, Embedding
from citewell.commands.failing import WRONG_USAGE, fail

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def bulk() -> None:
    """Builds a ledger in bulk."""


@app.command("build")
def build_(
    source: Annotated[Path, typer.Argument(help="Folder with papers, contexts and citations as Parquet.")],
    out: Annotated[Path, typer.Argument(help="Folder for the rows; those of an earlier build there are replaced.")],
    encoder: Annotated[str, typer.Option(help="As in CITEWELL_PROFILER__ENCODER.")] = DEFAULT_ENCODER,
    max_tokens: Annotated[int, typer.Option(min=0, help="As in CITEWELL_PROFILER__ENCODER_MAX_TOKENS.")] = 0,
    maker: Annotated[str, typer.Option(help="module:function that makes another encoder, for GPUs say.")] = "",
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a shuffle.")] = 8,
    memory: Annotated[str, typer.Option(help="Memory of Spark's driver, such as 2g.")] = "2g",
) -> None:
    """Runs the Spark job. It needs Java 17 and the extra `bulk`."""
    try:
        from citewell.bulk.job import Resources, build, session, told_rejects
    except ImportError as error:
        fail(f"{error.name} is missing: pip install 'citewell[bulk]'", WRONG_USAGE)
    if not (source / "papers").exists():
        fail(f"{source} has no papers: expected the folder papers with Parquet files", WRONG_USAGE)
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    spark = session(Resources(master, partitions, memory))
    try:
        manifest = build(spark, source.resolve(), out.resolve(), Embedding(encoder, max_tokens, maker))
    except ValueError as error:
        fail(str(error))
    finally:
        spark.stop()
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in manifest.seconds.items())
    typer.echo(f"{manifest.papers:,} papers, {manifest.citations:,} citations, {manifest.texts:,} texts: {told}")
    for reject in told_rejects(out):
        typer.echo(f"left out {reject['id']!r}: {reject['reject']}", err=True)


@app.command("convert")
def convert(
    folder: Annotated[Path, typer.Argument(help="Folder of papers and contexts as .jsonl, .jsonl.gz or .json.")],
    out: Annotated[Path, typer.Argument(help="Folder for Parquet.")],
) -> None:
    """Writes a data set as Parquet, as `build` reads it."""
    try:
        from citewell.bulk.converting import convert as write
    except ImportError as error:
        fail(f"{error.name} is missing: pip install 'citewell[bulk]'", WRONG_USAGE)
    try:
        papers, contexts, rejected = write(folder, out)
    except (OSError, ValueError) as error:
        fail(str(error))
    typer.echo(f"{papers:,} papers, {contexts:,} contexts, {rejected:,} left out")
