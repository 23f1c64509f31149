"""`citewell report`: the papers' tables, rivals and ours in one run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from citewell.lab.commands.global_task import made_system
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
from citewell.lab.rivals.measuring import DAVINCI, Bench
from citewell.lab.rivals.page import draw, page
from citewell.lab.rivals.registry import GLOBALS
from citewell.lab.rivals.rows import Row, RowStore
from citewell.lab.rivals.tables import (
    DEPTHS_PUBLISHED,
    PIPELINES_PUBLISHED,
    RERANKING_TABLES,
    RETRIEVAL_TABLES,
    WHOLE_LISTS,
    Head,
    Lines,
    by_depth,
    evidence_tables,
    lay_out,
    published_set,
    whole_lists_table,
)

_PIPELINE_DEPTHS = (100, 200, 500, 1000)
_DEPTHS = (10, 50, 100, 300, 1000)
_WHOLE_LISTS_OURS = {"bm25": "BM25", "global-no-references": "GLOBAL without references", "global": "GLOBAL (ours)"}

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
        list[str] | None, typer.Option(help="RETRIEVER>RERANKER; our reranker on ours by default.")
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
        retrieved = {name: bench.retrieval(name) for name in system or bench.retrievers()}
        pairs = (
            [_pair(each) for each in rerank or [f"profiler>{DAVINCI}", f"hybrid>{DAVINCI}"]] if rerank_queries else []
        )
        reranked = {f"{one}>{two}": bench.reranked(one, two, rerank_queries, depth) for one, two in pairs}
        lists = _whole_lists(bench, drafts) if drafts else {}
        evidence = bench.evidence(evidence_queries) if evidence_queries else None
    laid = _laid(retrieved, reranked, experiment.data.name)
    if lists:
        laid[WHOLE_LISTS] = whole_lists_table(lists)
    if evidence:
        laid |= evidence_tables(evidence)
    _print(laid, output)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        command = (
            f"citewell report tables $CITEWELL_DATA/{experiment.data.name} --mode {mode.value} "
            f"--paper-tokens {paper_tokens} --context-tokens {context_tokens} --rows ROWS "
            f"--models MODELS --queries {queries} --rerank-queries {rerank_queries} --depth {depth} "
            f"--evidence-queries {evidence_queries} --drafts {drafts} "
            "--out deploy/docs/results"
        )
        draw(bench, retrieved, reranked, out)
        (out / f"rivals-{experiment.data.name}.md").write_text(page(bench, retrieved, laid, command), "utf-8")


def _whole_lists(bench: Bench, papers: int) -> dict[str, Row]:
    """Our systems and the trained rivals of the global task."""
    trained = {name: rival.title for name, rival in GLOBALS.items() if bench.run(name)}
    named = {**_WHOLE_LISTS_OURS, **trained}
    make = {name: partial(made_system, name, bench.experiment, bench.models) for name in named}
    return {name: bench.whole_list(name, title, papers, make[name]) for name, title in named.items()}


def _pair(named: str) -> tuple[str, str]:
    retriever, separator, reranker = named.partition(">")
    if not separator:
        raise ValueError(f"--rerank takes RETRIEVER>RERANKER, got {named!r}")
    return retriever, reranker


def _laid(retrieved: Mapping[str, Row], reranked: Mapping[str, Row], data_name: str) -> dict[str, tuple[Head, Lines]]:
    """Every table of which a row was measured."""
    beside = published_set(data_name)
    laid = {table.title: lay_out(table, retrieved, data_name) for table in RETRIEVAL_TABLES}
    everything = {**retrieved, **reranked}
    if reranked:
        laid |= {table.title: lay_out(table, everything, data_name) for table in RERANKING_TABLES}
        laid["profiler-davinci, Table 6: MRR by k"] = by_depth(
            reranked, "MRR", lambda name: DEPTHS_PUBLISHED[beside] if name == f"profiler>{DAVINCI}" else {}, _DEPTHS
        )
        laid["hatten-scibert, Table 4: the whole pipeline by k"] = by_depth(
            reranked,
            "R@10",
            lambda name: dict(
                zip(_PIPELINE_DEPTHS, PIPELINES_PUBLISHED[beside].get(name.partition(">")[0], ()), strict=False)
            ),
            _PIPELINE_DEPTHS,
        )
    return {title: made for title, made in laid.items() if made[1]}


def _print(laid: Mapping[str, tuple[Head, Lines]], output: Output) -> None:
    if output is Output.JSON:
        made = {title: [dict(zip(head, line, strict=True)) for line in lines] for title, (head, lines) in laid.items()}
        print_json(made)
        return
    if output is Output.CSV:
        figures = [
            {"table": title, "system": line[0], "column": column, "figure": figure}
            for title, (head, lines) in laid.items()
            for line in lines
            for column, figure in zip(head[1:], line[1:], strict=True)
        ]
        print_csv(figures)
        return
    for title, (head, lines) in laid.items():
        print(f"\n{title}\n")
        for columns in [range(1, len(head))] if output is Output.MARKDOWN else _parts(head):
            shown = [0, *columns]
            print_rows([head[at] for at in shown], ([line[at] for at in shown] for line in lines), output)


def _parts(head: Head) -> list[range]:
    """The columns of a table in parts that a terminal of 80 columns holds: figures, times, what is published."""
    last = len(head) - 1
    figures = next((at for at, name in enumerate(head) if name == "retrieval ms"), last)
    return [part for part in (range(1, figures), range(figures, last), range(last, last + 1)) if part]


def _commit() -> str:
    described = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"
