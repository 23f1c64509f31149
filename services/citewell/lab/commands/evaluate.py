"""`citewell evaluate`: measures retrieval systems on a data set by a protocol that is checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from citewell.lab.commands.global_task import global_task
from citewell.lab.commands.ilciter import ilciter
from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    SEED,
    Cache,
    ContextTokens,
    Data,
    Encoder,
    JsonOut,
    PaperTokens,
    QueryMapFile,
    Split,
    TermWeightsFile,
    TheMode,
    WindowEncoderFolder,
    failing_clearly,
    progress,
)
from citewell.lab.commands.rerank import rerank
from citewell.lab.commands.served import served, served_search
from citewell.lab.commands.tables import Output, TheOutput, console, print_csv, print_json, print_rows
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, OnProgress, prepare, source_of
from citewell.lab.intervals import interval
from citewell.lab.metrics import METRICS, compare, estimate, means
from citewell.lab.protocol import counts
from citewell.lab.retrieval import Ranking, search
from citewell.lab.systems_by_name import SYSTEMS
from citewell.lab.vectors import import_vectors
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.term_weights import PACKAGED

IN_BRACKET = ("MRR", "R@10")
"""Shown of the first right answer as well: any paper that the query's bracket cites."""

app = typer.Typer(no_args_is_help=True, help=__doc__)
app.command("rerank")(rerank)
app.command("ilciter")(ilciter)
app.command("global")(global_task)
app.command("served")(served)
app.command("served-search")(served_search)


@app.command("run")
def run(
    data: Data,
    mode: TheMode,
    split: Split = "validation",
    system: Annotated[list[str] | None, typer.Option(help=f"Any of {', '.join(SYSTEMS)}; all by default.")] = None,
    against: Annotated[
        str, typer.Option(help="The system the others are compared with, on the same queries.")
    ] = "profiler",
    titles_only: Annotated[bool, typer.Option(help="Leave all abstracts out.")] = False,
    encoder: Encoder = DEFAULT_ENCODER,
    paper_tokens: PaperTokens = 0,
    context_tokens: ContextTokens = 0,
    raw: Annotated[bool, typer.Option(help="Vectors as the model gives them, not at length one.")] = False,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
    window_encoder: WindowEncoderFolder = PACKAGED,
    json_out: JsonOut = None,
    output: TheOutput = Output.TEXT,
) -> None:
    """Ranks every query of a split with each system, and prints metrics with intervals and paired differences."""
    for option, names in (("--system", system or ()), ("--against", (against,))):
        if unknown := [name for name in names if name not in SYSTEMS]:
            raise typer.BadParameter(f"{unknown[0]!r} is no system; known: {', '.join(SYSTEMS)}", param_hint=option)
    encoding = Encoding(encoder, paper_tokens, context_tokens, raw)
    with failing_clearly(), progress() as on_progress:
        experiment = prepare(
            data,
            split,
            mode,
            encoding,
            cache,
            on_progress,
            titles_only=titles_only,
            learned=LearnedParts(query_map, term_weights, window_encoder),
        )
        rankings = {name: _search(experiment, name, on_progress) for name in system or SYSTEMS}
    told = console(output)
    for what, count in counts(experiment.data, experiment.task).items():
        told.print(f"{what}: {count:,}")
    told.print(f"mode: {mode.value}; vectors: {experiment.vectors.provenance}")
    figures = _figures(experiment, rankings, against)
    stated = {"counts": counts(experiment.data, experiment.task), "mode": mode.value, "systems": figures}
    _print(stated, against, output)
    if json_out:
        json_out.write_text(json.dumps(stated, indent=1))


@app.command("import-vectors")
def import_(
    data: Data,
    vectors: Annotated[Path, typer.Argument(help="Folder with <set>.papers.npy, <set>.contexts.npy and .norms.npy.")],
    source: Annotated[str, typer.Option(help="How they were made, for the report.")],
    encoder: Encoder = DEFAULT_ENCODER,
    paper_tokens: PaperTokens = 0,
    context_tokens: ContextTokens = 0,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Imports vectors made elsewhere, in the order of the data set's files; encodes a sample to compare."""
    encoders = Encoding(encoder, paper_tokens, context_tokens).load()
    with failing_clearly():
        for what, made_by in zip(("papers", "contexts"), encoders, strict=True):
            agreement = import_vectors(data, what, vectors, cache, made_by, source)
            typer.echo(f"{what}: a sample agrees to a cosine of {agreement:.5f} with {source_of(made_by)}")


def _search(experiment: Experiment, name: str, on_progress: OnProgress) -> Ranking:
    return search(
        SYSTEMS[name](experiment),
        experiment.data,
        experiment.task,
        10,
        experiment.order,
        lambda done, total: on_progress(name, done, total),
        brackets=experiment.brackets,
    )


def _figures(experiment: Experiment, rankings: dict[str, Ranking], against: str) -> dict[str, dict[str, object]]:
    clusters = experiment.data.contexts.citing[experiment.task.queries]
    made: dict[str, dict[str, object]] = {}
    for name, ranking in rankings.items():
        rng = np.random.default_rng(SEED)
        made[name] = {metric: asdict(estimate(metric, ranking.gold, rng, clusters)) for metric in METRICS}
        made[name]["bracket"] = means(ranking.bracket)
        made[name]["seconds"] = ranking.seconds
        if against in rankings and name != against:
            difference = compare("MRR", ranking.gold, rankings[against].gold, rng, clusters)
            made[name]["against"] = asdict(difference)
    return made


def _print(stated: dict[str, Any], against: str, output: Output) -> None:
    figures: dict[str, Any] = stated["systems"]
    if output is Output.JSON:
        print_json(stated)
        return
    if output is Output.CSV:
        columns = ("mean", "low", "high", "queries")
        print_csv(
            [
                {"system": name, "metric": metric, **{column: figure[metric][column] for column in columns}}
                for name, figure in figures.items()
                for metric in METRICS
            ]
        )
        return
    short = output is Output.TEXT
    shown = ("MRR", "R@10", "R@50", "R@300", "NDCG@10")
    rows = ([name, *(interval(figure[metric], short=short) for metric in shown)] for name, figure in figures.items())
    print_rows(["system", *shown], rows, output)
    header = ["system", *(f"{metric}, bracket" for metric in IN_BRACKET), f"MRR − {against}", "p", "seconds"]
    print_rows(header, ([name, *_compared(figure, short)] for name, figure in figures.items()), output)


def _compared(figure: dict[str, Any], short: bool) -> list[str]:
    difference = figure.get("against")
    return [
        *(f"{figure['bracket'][metric]:.1f}" for metric in IN_BRACKET),
        interval(difference, signed=True, short=short) if difference else "",
        f"{difference['p']:.1g}" if difference else "",
        f"{figure['seconds']:.0f}",
    ]
