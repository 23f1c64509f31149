"""`citewell report`: the papers' tables, rivals and ours in one run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    SEED,
    Cache,
    ContextTokens,
    Data,
    PaperTokens,
    Split,
    TheMode,
    failing_clearly,
    progress,
)
from citewell.lab.commands.tables import Output, TheOutput, print_csv, print_json, print_rows
from citewell.lab.experiment import Encoding, prepare
from citewell.lab.rivals.measuring import Bench
from citewell.lab.rivals.page import draw, page
from citewell.lab.rivals.report import Asked, laid, measure, missing, pipelines
from citewell.lab.rivals.rows import RowStore
from citewell.lab.rivals.tables import Head, Lines

_WIDTH = 80

app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def reports() -> None:
    """Reports."""


@app.command("tables")
def tables(
    data: Data,
    mode: TheMode,
    rows: Annotated[Path, typer.Option(help="Folder of kept rows: one that is there is not measured again.")],
    models: Annotated[Path | None, typer.Option(help="Folder of the runs of citewell train.")] = None,
    split: Split = "test",
    queries: Annotated[int, typer.Option(min=1, help="Size of the sample of queries for retrieval.")] = 1000,
    rerank_queries: Annotated[int, typer.Option(min=0, help="The first of them are reranked; 0 = none.")] = 100,
    depth: Annotated[int, typer.Option(min=10, help="k: candidates reranked.")] = 100,
    system: Annotated[list[str] | None, typer.Option(help="Retrievers; all that are trained by default.")] = None,
    rerank: Annotated[
        list[str] | None, typer.Option(help="RETRIEVER>RERANKER; all whose models are there by default.")
    ] = None,
    ablations: Annotated[
        Path | None, typer.Option(help="A run of citewell train davinci with several heads.", exists=True)
    ] = None,
    evidence_queries: Annotated[int, typer.Option(min=0, help="The first of them go to ILCiteR; 0 = none.")] = 300,
    drafts: Annotated[int, typer.Option(min=0, help="Papers whose whole reference list is asked; 0 = none.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = SEED,
    paper_tokens: PaperTokens = 0,
    context_tokens: ContextTokens = 0,
    cache: Cache = DEFAULT_CACHE,
    out: Annotated[Path | None, typer.Option(help="Folder for rivals-SET.md with its pictures.")] = None,
    output: TheOutput = Output.TEXT,
) -> None:
    """Prints the tables of the papers: rivals and ours on the same queries, with times and the published figures."""
    with failing_clearly(), progress() as on_progress:
        encoding = Encoding(paper_tokens=paper_tokens, context_tokens=context_tokens)
        experiment = prepare(data, split, mode, encoding, cache, on_progress)
        bench = Bench(experiment, encoding, RowStore(rows, _commit()), models, queries, seed, on_progress)
        retrievers = system or bench.retrievers()
        chosen = pipelines(bench, retrievers, depth) if rerank is None else rerank
        asked = Asked(retrievers, chosen, rerank_queries, depth, evidence_queries, drafts, ablations)
        found = measure(bench, asked)
    made, lacking = laid(found, experiment.data.name), missing(bench, asked)
    _print(made, lacking, output)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        command = (
            f"citewell report tables $CITEWELL_DATA/{experiment.data.name} --mode {mode.value} "
            f"--paper-tokens {paper_tokens} --context-tokens {context_tokens} --rows ROWS "
            f"--models MODELS --queries {queries} --rerank-queries {rerank_queries} --depth {depth} "
            f"--evidence-queries {evidence_queries} --drafts {drafts} {'--ablations RUN ' if ablations else ''}"
            "--out deploy/docs/results"
        )
        draw(bench, found.retrieved, found.reranked, out)
        (out / f"rivals-{experiment.data.name}.md").write_text(page(bench, found, made, lacking, command), "utf-8")


def _print(made: Mapping[str, tuple[Head, Lines]], lacking: Mapping[str, Sequence[str]], output: Output) -> None:
    if output is Output.JSON:
        tables = {
            title: [dict(zip(head, line, strict=True)) for line in lines]
            for title, (head, lines) in made.items()
            if lines
        }
        print_json(tables)
    elif output is Output.CSV:
        figures = [
            {"table": title, "system": line[0], "column": column, "figure": figure}
            for title, (head, lines) in made.items()
            for line in lines
            for column, figure in zip(head[1:], line[1:], strict=True)
        ]
        print_csv(figures)
    else:
        for title in dict.fromkeys((*made, *lacking)):
            _print_table(title, *made.get(title, ((), [])), lacking.get(title, ()), output)


def _print_table(title: str, head: Head, lines: Lines, lacking: Sequence[str], output: Output) -> None:
    if not lines and not lacking:
        return
    print(f"\n{title}\n")
    if lines:
        for columns in [range(1, len(head))] if output is Output.MARKDOWN else _parts(head):
            shown = [0, *columns]
            print_rows([head[at] for at in shown], ([line[at] for at in shown] for line in lines), output)
    for line in lacking:
        print(line if output is Output.MARKDOWN else fill(line, _WIDTH, break_on_hyphens=False))


def _parts(head: Head) -> list[range]:
    """The columns of a table in parts that a terminal of 80 columns holds: figures, times, what is published."""
    last = len(head) - 1
    figures = next((at for at, name in enumerate(head) if name == "retrieval ms"), last)
    return [part for part in (range(1, figures), range(figures, last), range(last, last + 1)) if part]


def _commit() -> str:
    described = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"
