"""`citewell evaluate global`: whole reference lists for drafts without a context, and how systems favour kin."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    SEED,
    Cache,
    Data,
    Split,
    TheMode,
    failing_clearly,
    progress,
)
from citewell.lab.commands.tables import Output, TheOutput, console, print_csv, print_json, print_rows
from citewell.lab.experiment import Encoding, Experiment, prepare
from citewell.lab.global_systems import OURS, made_system
from citewell.lab.intervals import interval
from citewell.lab.reference_lists import (
    GlobalRanking,
    ReferenceLists,
    global_difference,
    global_figures,
    rank,
    reference_lists,
    sampled_lists,
    shared_ranks,
)
from citewell.lab.rivals.registry import GLOBALS
from citewell.lab.rivals.rival import run_folder
from citewell.lab.training import TrainingRun

FIGURES = ("F1@20", "P@20", "R@20", "MRR")
SHOWN_DEPTHS = (1, 5, 10, 20, 50, 100)
KIN = ("authors", "venue")


def global_task(
    data: Data,
    mode: TheMode,
    split: Split = "validation",
    system: Annotated[
        list[str] | None, typer.Option(help=f"Any of {', '.join([*OURS, *GLOBALS])}; those that are there by default.")
    ] = None,
    models: Annotated[Path | None, typer.Option(help="Folder of the runs of citewell train.")] = None,
    against: Annotated[str, typer.Option(help="The system the others are compared with.")] = "global",
    papers: Annotated[int, typer.Option(min=1, help="Query papers; a sample where there are more.")] = 10_000,
    least: Annotated[int, typer.Option(min=1, help="The fewest candidates that a query paper cites.")] = 1,
    kin: Annotated[str, typer.Option(help="Also tell the ranks of papers that share this: authors or venue.")] = "",
    cache: Cache = DEFAULT_CACHE,
    output: TheOutput = Output.TEXT,
) -> None:
    """Prints F1@20, P@20, R@20 and MRR of whole reference lists, with intervals and paired differences."""
    with failing_clearly(), progress() as on_progress:
        if kin and kin not in KIN:
            raise ValueError(f"--kin is {kin!r}, not one of {', '.join(KIN)}")
        experiment = prepare(data, split, mode, Encoding(), cache, on_progress)
        lists = sampled_lists(reference_lists(experiment.data, experiment.task, least), papers, SEED)
        if not len(lists):
            raise ValueError(f"no {split} paper of {experiment.data.name} cites {least} candidates")
        rankings = {}
        for name in system or [*OURS, *_trained(models, experiment.data.name)]:
            made = made_system(name, experiment, models)
            rankings[name] = rank(made, experiment, lists, partial(on_progress, name))
        stated = stated_figures(rankings, lists, against)
        if kin:
            stated["kin"] = {name: kin_figures(experiment, one, kin) for name, one in rankings.items()}
    console(output).print(f"{stated['papers']:,} query papers, {stated['mean references']:.1f} references each")
    _print(stated, kin, against, output)


def _trained(models: Path | None, data_name: str) -> list[str]:
    return [name for name in GLOBALS if models and TrainingRun(run_folder(models, data_name, name)).kept.exists()]


def stated_figures(rankings: dict[str, GlobalRanking], lists: ReferenceLists, against: str) -> dict[str, Any]:
    """What the command prints, as plain data."""
    values = {name: ranking.values() for name, ranking in rankings.items()}
    systems: dict[str, Any] = {}
    for name, ranking in rankings.items():
        systems[name] = global_figures(values[name], SEED)
        systems[name]["CPU ms"] = 1000 * ranking.cpu_seconds / len(lists)
        if against in values and name != against:
            systems[name]["against"] = global_difference(values[name], values[against], SEED)
    return {
        "papers": len(lists),
        "mean references": float(np.mean([len(cited) for cited in lists.cited])),
        "systems": systems,
    }


def kin_figures(experiment: Experiment, ranking: GlobalRanking, kin: str) -> dict[str, Any]:
    """For lists of several lengths: the mean and the largest rank of papers that share an author or the venue with
    the query paper, and their share. A lower mean rank is a stronger bias towards them."""
    papers = experiment.data.papers
    names = [
        frozenset(filter(None, each.split("\n"))) for each in (papers.authors if kin == "authors" else papers.venues)
    ]
    ranks = shared_ranks(ranking.papers, lambda one, other: bool(names[one] & names[other]), ranking.lists.papers)
    told = {}
    for depth in SHOWN_DEPTHS:
        inside = np.concatenate([each[each <= depth] for each in ranks] + [np.empty(0, np.int64)])
        returned = int((ranking.papers[:, :depth] >= 0).sum())
        told[str(depth)] = {
            "mean rank": float(inside.mean()) if len(inside) else 0.0,
            "max rank": int(inside.max()) if len(inside) else 0,
            "share": 100.0 * len(inside) / max(returned, 1),
        }
    return told


def _print(stated: dict[str, Any], kin: str, against: str, output: Output) -> None:
    systems: dict[str, Any] = stated["systems"]
    if output is Output.JSON:
        print_json(stated)
        return
    if output is Output.CSV:
        print_csv([{"system": name, "metric": each, **one[each]} for name, one in systems.items() for each in FIGURES])
        return
    short = output is Output.TEXT
    rows = [
        [name, *(interval(one[each], short=short) for each in FIGURES), f"{one['CPU ms']:.0f}"]
        for name, one in systems.items()
    ]
    print_rows(["system", *FIGURES, "CPU ms"], rows, output)
    rows = [
        [name, *(interval(one["against"][each], signed=True, short=short) for each in ("F1@20", "MRR"))]
        for name, one in systems.items()
        if "against" in one
    ]
    print_rows([f"minus {against}", "F1@20", "MRR"], rows, output)
    if kin:
        header = [f"same {kin}", *(f"first {depth}" for depth in SHOWN_DEPTHS)]
        told = [
            [name, *(f"{each['mean rank']:.1f} ({each['share']:.0f} %)" for each in one.values())]
            for name, one in stated["kin"].items()
        ]
        print_rows(header, told, output)
