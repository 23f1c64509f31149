"""`citewell train term-weights`: learns the weights of the words near a query's marker."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    Data,
    QueryMapFile,
    TheMode,
    failing_clearly,
    progress,
    writable,
)
from citewell.lab.experiment import Encoding, LearnedParts, prepare
from citewell.lab.term_weights import TRAINED, Learned, WeightSettings, learn
from citewell.lab.whole_files import written_whole
from citewell.profiler.term_weights import OFF, PACKAGED

DEFAULT = WeightSettings()
SHOWN = ("MRR", "R@10", "R@300")


def term_weights(
    data: Data,
    out: Annotated[
        Path, typer.Argument(help="The weights' file, for CITEWELL_PROFILER__TERM_WEIGHTS.", callback=writable)
    ],
    mode: TheMode,
    queries: Annotated[int, typer.Option(min=1, help="The most train contexts that are used.")] = DEFAULT.queries,
    validation_queries: Annotated[
        int, typer.Option(min=1, help="Validation queries to show figures of.")
    ] = DEFAULT.validation_queries,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the train contexts.")] = DEFAULT.epochs,
    kept: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the weight that words keep from the rule without learning.")
    ] = DEFAULT.kept,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = DEFAULT.seed,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
) -> None:
    """Learns weights on the train split. Writes them even where they are no better, and says so."""
    settings = replace(
        DEFAULT, queries=queries, validation_queries=validation_queries, epochs=epochs, kept=kept, seed=seed
    )
    began = time.process_time()
    with failing_clearly(), progress() as on_progress:
        experiment = prepare(
            data, "validation", mode, Encoding(), cache, on_progress, learned=LearnedParts(query_map, OFF)
        )
        card = {"trained on": f"the train split of {experiment.data.name}, {mode.value}", "seed": seed}
        learned = learn(experiment, settings, on_progress, card)
    out.write_text(learned.text, encoding="utf-8")
    figures = out.with_name(f"{out.stem}-figures.json")
    written_whole(figures, json.dumps(told(learned, settings), indent=1) + "\n")
    console = Console(highlight=False)
    for name, found in figures_of(learned).items():
        console.print(f"HYBRID, term weights {name}: " + ", ".join(f"{key} {found[key]:.2f}" for key in SHOWN))
    seconds = time.process_time() - began
    console.print(
        f"{out} holds weights {learned.weights.digest}; best on validation: {learned.best}; {seconds:.0f} CPU-s"
    )


def figures_of(learned: Learned) -> dict[str, dict[str, float]]:
    """HYBRID's figures by the weights that it has."""
    return {OFF: learned.without, PACKAGED: learned.packaged, TRAINED: learned.trained}


def told(learned: Learned, settings: WeightSettings) -> dict[str, object]:
    """The settings of the weights and their figures on validation, for the file beside them."""
    kept = {name: {metric: round(each[metric], 2) for metric in SHOWN} for name, each in figures_of(learned).items()}
    return {"settings": asdict(settings), "validation": kept, "best": learned.best}
