"""`citewell train window-encoder`: trains the encoder of the words around a query's marker."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    Data,
    QueryMapFile,
    TermWeightsFile,
    TheMode,
    failing_clearly,
    progress,
)
from citewell.lab.experiment import Encoding, LearnedParts, prepare
from citewell.lab.origins import same_origin
from citewell.lab.sampling import sampled
from citewell.lab.term_weights import TRAINED
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from citewell.lab.whole_files import written_whole
from citewell.lab.window_encoder import WindowLearner, WindowSettings, cosine_mrr, export_window_encoder
from citewell.profiler.encoder import load_encoder
from citewell.profiler.encoder_files import read_encoder_files
from citewell.profiler.term_weights import PACKAGED
from citewell.profiler.window_encoder import OFF, TOKENS, load_window_encoder

DEFAULT = WindowSettings()


def window_encoder(
    data: Data,
    out: Annotated[Path, typer.Argument(help="The encoder's folder, for CITEWELL_PROFILER__WINDOW_ENCODER.")],
    mode: TheMode,
    queries: Annotated[int, typer.Option(min=1, help="The most train contexts that are used.")] = DEFAULT.queries,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = DEFAULT.steps,
    validation_queries: Annotated[
        int, typer.Option(min=1, help="Validation queries to show figures of.")
    ] = DEFAULT.validation_queries,
    batch: Annotated[int, typer.Option(min=2, help="Train contexts of a step.")] = DEFAULT.batch,
    rate: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = DEFAULT.learning_rate,
    start_from: Annotated[
        Path | None, typer.Option(help="OUT-run of an earlier training to go on from; by default it starts from ENC1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = DEFAULT.seed,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
) -> None:
    """Trains on three of four train contexts; continues a run that was stopped, in OUT-run beside OUT.

    Its gain shows behind the second phase, which is trained next: `citewell train all` does both.
    """
    torch.set_num_threads(threads)
    console = Console(highlight=False)
    settings = replace(
        DEFAULT,
        queries=queries,
        steps=steps,
        learning_rate=rate,
        validation_queries=validation_queries,
        batch=batch,
        seed=seed,
        start_from=str(start_from or ""),
    )
    with failing_clearly(), progress(console) as on_progress:
        encoding = Encoding()
        experiment = prepare(
            data, "validation", mode, encoding, cache, on_progress, learned=LearnedParts(query_map, term_weights, OFF)
        )
        run = TrainingRun(out.with_name(f"{out.name}-run"))
        run.begin(settings_json(settings))
        same_origin(run.path, experiment.origin)
        windows = load_encoder(encoding.encoder, max_tokens=TOKENS)
        folder = read_encoder_files(encoding.encoder).folder
        learner = WindowLearner(settings, experiment, windows, folder, on_progress, run.path / "lists.npz")

        def on_step(entry: dict[str, Any]) -> None:
            on_progress("window encoder, steps", entry["step"], settings.steps)
            if "validation_mrr" in entry:
                console.print(f"step {entry['step']}: loss {entry['loss']:.3f}, MRR {entry['validation_mrr']:.2f}")

        train(learner, run, Budget(float("inf"), settings.steps), on_step)
        made_for = encoding.load()[1].model_hash
        export_window_encoder(run.weights(), encoding.encoder, made_for, TOKENS, learner.teaching, out)
        asked = sampled(experiment.task.queries, settings.validation_queries, settings.seed)
        found = {
            name: cosine_mrr(replace(experiment, window_encoder=load_window_encoder(setting, made_for)), asked)
            for name, setting in ((PACKAGED, PACKAGED), (TRAINED, str(out)))
        }
    best = max(found, key=lambda name: found[name])
    told = {
        "settings": asdict(settings),
        "CPU minutes": round(run.cpu_minutes(), 1),
        "validation": {name: {"MRR of the window's cosine": round(mrr, 2)} for name, mrr in found.items()},
        "best": best,
    }
    written_whole(out.with_name(f"{out.name}-figures.json"), json.dumps(told, indent=1) + "\n")
    for name, mrr in found.items():
        console.print(f"the window's cosine alone, {name}: MRR {mrr:.2f}")
    console.print(f"{out} holds the window encoder; best on validation: {best}")
