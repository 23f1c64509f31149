"""`citewell train query-map`: learns the query map of HYBRID."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    Data,
    Encoder,
    TheMode,
    failing_clearly,
    progress,
    writable,
)
from citewell.lab.experiment import Encoding, LearnedParts, prepare
from citewell.lab.origins import origin_digest
from citewell.lab.query_map import Learned, MapSettings, learn
from citewell.lab.whole_files import written_whole
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.query_map import OFF, write_query_map

DEFAULT = MapSettings()
SHOWN = ("MRR", "R@10", "R@300")


def query_map(
    data: Data,
    out: Annotated[Path, typer.Argument(help="The map's file, for CITEWELL_PROFILER__QUERY_MAP.", callback=writable)],
    mode: TheMode,
    queries: Annotated[int, typer.Option(min=1, help="The most train contexts that are used.")] = DEFAULT.queries,
    validation_queries: Annotated[
        int, typer.Option(min=1, help="Validation queries that choose the epoch.")
    ] = DEFAULT.validation_queries,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the train contexts.")] = DEFAULT.epochs,
    rate: Annotated[float, typer.Option(min=0, help="Adam's learning rate.")] = DEFAULT.learning_rate,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = DEFAULT.seed,
    encoder: Encoder = DEFAULT_ENCODER,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Learns a map on the train split. Writes it even where it is no better, and says so."""
    settings = replace(
        DEFAULT,
        queries=queries,
        validation_queries=validation_queries,
        epochs=epochs,
        learning_rate=rate,
        seed=seed,
    )
    with failing_clearly(), progress() as on_progress:
        encoding = Encoding(encoder)
        experiment = prepare(data, "validation", mode, encoding, cache, on_progress, learned=LearnedParts(OFF))
        origin = origin_digest(experiment.origin)
        lists = out.with_name(f"{out.stem}-{queries}-{settings.depth}-{seed}-{origin}.lists.npz")
        learned = learn(experiment, settings, on_progress, lists)
        model = encoding.load()[1].model_hash
        written = write_query_map(out, learned.context, learned.paper, model)
    written_whole(out.with_suffix(".json"), json.dumps(told(learned, settings), indent=1) + "\n")
    console = Console(highlight=False)
    for name, figures in (("eq. 4", learned.before), ("query map", learned.after)):
        console.print(f"{name}: " + ", ".join(f"{metric} {figures[metric]:.2f}" for metric in SHOWN))
    verdict = "better than eq. 4 on validation" if learned.better else "no better than eq. 4: do not use it"
    console.print(f"{out} holds map {written.digest}: {verdict}")


def told(learned: Learned, settings: MapSettings) -> dict[str, object]:
    """The settings of a map and its figures on validation, for the file beside it."""
    figures = {"eq. 4": learned.before, "query map": learned.after}
    kept = {name: {metric: round(each[metric], 2) for metric in SHOWN} for name, each in figures.items()}
    return {"settings": asdict(settings), "validation": kept, "better": learned.better}
