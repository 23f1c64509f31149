"""`citewell evaluate served` and `served-search`: running services against the lab."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from citewell.index.second_phase_model import packaged_model
from citewell.lab.brackets import Brackets
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
from citewell.lab.commands.tables import Output, print_rows
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, prepare
from citewell.lab.intervals import interval
from citewell.lab.metrics import estimate
from citewell.lab.sampling import sampled
from citewell.lab.served import compare_with_index
from citewell.lab.served_answers import SHOWN, Answers, Asking, agreement, ask, load, time_defaults
from citewell.lab.systems import System
from citewell.lab.systems_by_name import SYSTEMS
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.term_weights import PACKAGED

LAB_SYSTEM = {"profile": "profiler", "hybrid": "hybrid"}
"""Which of the lab's systems a strategy must rank like."""
SHOWN_METRICS = ("MRR", "R@5", "R@10", "R@20", "R@50", "R@100", "NDCG@10")


def served(
    data: Data,
    mode: TheMode,
    recommender: Annotated[str, typer.Option(help="Address of a running recommender, host:port.")],
    profiler: Annotated[
        str, typer.Option(help="Its profiler, host:port: the set is loaded there first. Empty: it is loaded already.")
    ] = "",
    split: Split = "validation",
    queries: Annotated[int, typer.Option(min=1, help="The first so many of a seeded shuffle of the split.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the sample; the same as in `evaluate rerank`.")] = 13,
    strategy: Annotated[str, typer.Option(help=f"Any of {', '.join(LAB_SYSTEM)}.")] = "hybrid",
    rerank: Annotated[bool, typer.Option(help="Let the services rerank.")] = True,
    rerank_depth: Annotated[int, typer.Option(min=0, max=1000, help="0 is the services' default.")] = 0,
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Queries asked at a time.")] = 1,
    timed: Annotated[int, typer.Option(min=0, help="Queries timed with default options, 1 and 4 in flight.")] = 0,
    titles_only: Annotated[bool, typer.Option(help="As if no paper had an abstract.")] = False,
    encoder: Encoder = DEFAULT_ENCODER,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
    window_encoder: WindowEncoderFolder = PACKAGED,
    json_out: JsonOut = None,
) -> None:
    """Asks five running services through Recommend, and compares their retrieval with the lab's.

    With --profiler the papers and train contexts are loaded first, with the lab's vectors; the services must be empty
    and encode with the same model. Exits with 1 where a ranking differs from the lab's by more than equal scores.
    """
    if strategy not in LAB_SYSTEM:
        raise typer.BadParameter(f"{strategy!r} is none of {', '.join(LAB_SYSTEM)}", param_hint="--strategy")
    asking = Asking(strategy, rerank, rerank_depth, in_flight)
    with failing_clearly(), progress() as on_progress:
        encoding = Encoding(encoder)
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
        drawn = sampled(experiment.task.queries, queries, seed)
        if profiler:
            model, _ = encoding.load()
            with tempfile.TemporaryDirectory() as scratch:
                loading = load(experiment, data, Path(scratch) / "corpus", profiler, model, on_progress)
                taken, refused = asyncio.run(loading)
            typer.echo(f"{taken:,} publications loaded, {refused:,} refused")
        answers = asyncio.run(ask(experiment, recommender, drawn, asking, on_progress))
        times = {
            count: asyncio.run(time_defaults(experiment, recommender, drawn[:timed], count, on_progress))
            for count in ((1, 4) if timed else ())
        }
        compared = agreement(experiment, _system(experiment, strategy, answers.second_phase), answers)
    clusters = experiment.data.contexts.citing[drawn]
    orders = {
        "answers": answers.gold,
        "answers, first of the bracket": _first(answers.papers, drawn, experiment.brackets),
        "retrieval": _gold(experiment.data.contexts.cited[drawn], answers),
        "retrieval, first of the bracket": _first(answers.retrieved, drawn, experiment.brackets),
    }
    rng = np.random.default_rng(SEED)
    figures = {
        name: {metric: asdict(estimate(metric, ranks, rng, clusters)) for metric in SHOWN_METRICS}
        for name, ranks in orders.items()
    }
    stated: dict[str, Any] = {
        "figures": figures,
        "agreement": asdict(compared),
        "degraded": dict(answers.degraded),
        "seconds": {"asked": _quantiles(answers.seconds)} | {f"{n}": _quantiles(each) for n, each in times.items()},
    }
    _tell(stated, asking, len(drawn))
    if json_out:
        json_out.write_text(json.dumps(stated, indent=1))
    if compared.equivalent < compared.queries:
        raise typer.Exit(1)


def _system(experiment: Experiment, strategy: str, second_phase: str) -> System:
    """The lab's system that the services must rank like."""
    if not second_phase:
        return SYSTEMS[LAB_SYSTEM[strategy]](experiment)
    if second_phase != packaged_model().hash:
        raise ValueError(f"the services rank by the second phase {second_phase}, which is not the one in the package")
    return SYSTEMS["second-phase"](experiment)


def _gold(cited: np.ndarray, answers: Answers) -> np.ndarray:
    """Rank of the cited paper in the order of retrieval; 0 where it is not among the items."""
    found = answers.retrieved == cited[:, None]
    return np.where(found.any(axis=1), found.argmax(axis=1) + 1, 0).astype(np.int64)


def _first(ranked: np.ndarray, queries: np.ndarray, brackets: Brackets) -> np.ndarray:
    """Rank of the first paper that a query's whole bracket cites; 0 where there is none."""
    rows = zip(ranked, queries, strict=True)
    right = np.array([np.isin(papers, brackets.answers(int(query))) for papers, query in rows])
    return np.where(right.any(axis=1), right.argmax(axis=1) + 1, 0).astype(np.int64)


def _quantiles(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{q}": float(np.quantile(seconds, q / 100)) for q in (50, 95)}


def _tell(stated: dict[str, Any], asking: Asking, queries: int) -> None:
    console = Console(highlight=False)
    console.print(f"{queries} queries, the first {SHOWN} items")
    for shown in (SHOWN_METRICS[:4], SHOWN_METRICS[4:]):  # both tables fit into 80 columns
        rows = (
            [name, *(interval(figures[metric], 2, short=True) for metric in shown)]
            for name, figures in stated["figures"].items()
        )
        print_rows(["order", *shown], rows, Output.TEXT)
    told = stated["agreement"]
    console.print(
        f"retrieval: {told['identical']} of {told['queries']} orders identical to the lab's, {told['equivalent']} but "
        f"for equal scores; the largest difference of scores at one rank is {told['largest']:.1e}"
    )
    degraded = ", ".join(f"{count} {reason}" for reason, count in stated["degraded"].items()) or "none"
    console.print(f"degraded: {degraded}")
    for name, times in stated["seconds"].items():
        what = f"top {SHOWN}, {asking.in_flight} in flight" if name == "asked" else f"defaults, {name} in flight"
        console.print(f"{what}: p50 {1000 * times['p50']:.0f} ms, p95 {1000 * times['p95']:.0f} ms")


def served_search(
    data: Data,
    mode: TheMode,
    index: Annotated[str, typer.Option(help="Address of a running index service, host:port.")],
    split: Split = "validation",
    sample: Annotated[int, typer.Option(min=1, help="Queries to compare, drawn with a fixed seed.")] = 200,
    depth: Annotated[int, typer.Option(min=1, max=3000, help="How far down the rankings are compared.")] = 300,
    repeats: Annotated[int, typer.Option(min=0, help="How often one request is sent again.")] = 100,
    encoder: Encoder = DEFAULT_ENCODER,
    paper_tokens: PaperTokens = 0,
    context_tokens: ContextTokens = 0,
    cache: Cache = DEFAULT_CACHE,
    json_out: JsonOut = None,
) -> None:
    """Compares the lab's eq. 5 with Search of a running index, in a view of its own that is dropped again."""
    with failing_clearly(), progress() as on_progress:
        experiment = prepare(data, split, mode, Encoding(encoder, paper_tokens, context_tokens), cache, on_progress)
        queries = experiment.task.queries
        drawn = np.sort(np.random.default_rng(SEED).choice(queries, min(sample, len(queries)), replace=False))
        found = asyncio.run(compare_with_index(experiment, index, drawn, depth, repeats, on_progress))
    typer.echo(
        f"{found.queries} queries, top {found.depth}: {found.identical} rankings identical to the lab's, "
        f"{found.equivalent} but for equal cosines; {found.milliseconds:.1f} ms a search\n"
        f"one request sent {found.repeats} times more: {found.repeated} answers identical to the first"
    )
    if json_out:
        json_out.write_text(json.dumps(asdict(found), indent=1))
    if found.equivalent < found.queries or found.repeated < found.repeats:
        raise typer.Exit(1)
