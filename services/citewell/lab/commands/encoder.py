"""`citewell train encoder`: fine-tunes ENC1 on a user's own citations."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from citewell.lab import chosen
from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    Data,
    TermWeightsFile,
    TheMode,
    failing_clearly,
    progress,
)
from citewell.lab.encoder_training import EncoderLearner, EncoderSettings, export_encoder, mean_of
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, prepare
from citewell.lab.metrics import means
from citewell.lab.origins import same_origin
from citewell.lab.retrieval import search
from citewell.lab.sampling import sampled
from citewell.lab.systems import Fusion
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from citewell.lab.whole_files import written_whole
from citewell.profiler.encoder_files import DEFAULT_ENCODER, read_encoder_files
from citewell.profiler.term_weights import OFF, PACKAGED

DEFAULT = EncoderSettings()
LEXICAL_WEIGHTS = (chosen.LEXICAL, 2.0)
"""Weights of the words in HYBRID that figures are shown for."""


def encoder(
    data: Data,
    out: Annotated[Path, typer.Argument(help="The encoder's folder, for CITEWELL_PROFILER__ENCODER.")],
    mode: TheMode,
    queries: Annotated[int, typer.Option(min=1, help="The most train contexts that are used.")] = DEFAULT.queries,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.")] = DEFAULT.steps,
    batch: Annotated[int, typer.Option(min=2, help="Train contexts of a step.")] = DEFAULT.batch,
    rate: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = DEFAULT.learning_rate,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the trained weights; the rest is what training started from.")
    ] = 1.0,
    validation_queries: Annotated[int, typer.Option(min=1, help="Validation queries to show figures of.")] = 1000,
    compare: Annotated[
        bool, typer.Option(help="Encode all texts with it and show what PROFILE and HYBRID gain.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = DEFAULT.seed,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    cache: Cache = DEFAULT_CACHE,
    term_weights: TermWeightsFile = PACKAGED,
) -> None:
    """Trains on three of four train contexts; continues a run that was stopped, in OUT-run beside OUT.

    A profiler with another encoder fills a new view, and the second phase is trained anew for it.
    """
    torch.set_num_threads(threads)
    console = Console(highlight=False)
    settings = replace(DEFAULT, queries=queries, steps=steps, batch=batch, learning_rate=rate, seed=seed)
    learned = LearnedParts(OFF, term_weights, OFF)
    with failing_clearly(), progress(console) as on_progress:
        start = prepare(data, "validation", mode, Encoding(), cache, on_progress, learned=learned)
        run = TrainingRun(out.with_name(f"{out.name}-run"))
        run.begin(settings_json(settings))
        same_origin(run.path, start.origin)
        folder = read_encoder_files(DEFAULT_ENCODER).folder
        learner = EncoderLearner(settings, start, DEFAULT_ENCODER, folder, on_progress, run.path / "lists.npz")
        begun_with = learner.weights()

        def on_step(entry: dict[str, Any]) -> None:
            on_progress("encoder, steps", entry["step"], settings.steps)
            if "validation_mrr" in entry:
                console.print(f"step {entry['step']}: loss {entry['loss']:.3f}, MRR {entry['validation_mrr']:.2f}")

        train(learner, run, Budget(float("inf"), settings.steps), on_step)
        weights = mean_of(run.weights(), begun_with, share)
        export_encoder(weights, DEFAULT_ENCODER, settings, learner.teaching, out)
        told: dict[str, Any] = {
            "settings": asdict(settings),
            "share": share,
            "CPU minutes": round(run.cpu_minutes(), 1),
        }
        if compare:
            tuned = prepare(data, "validation", mode, Encoding(str(out)), cache, on_progress, learned=learned)
            asked = {"ENC1": start, "trained": tuned}
            told["validation"] = {name: _figures(each, validation_queries, seed) for name, each in asked.items()}
            for name, found in told["validation"].items():
                for system, figures in found.items():
                    console.print(
                        f"{name}, {system}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
                    )
    written_whole(out.with_name(f"{out.name}-figures.json"), json.dumps(told, indent=1) + "\n")
    console.print(f"{out} holds the encoder")


def _figures(experiment: Experiment, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Of PROFILE, and of HYBRID with each weight of the words."""
    task = replace(experiment.task, queries=sampled(experiment.task.queries, count, seed))
    words, cosine = experiment.lexical_profile(), experiment.mapped_profiler
    systems = {"PROFILE": Fusion("profile", [(1.0, experiment.profiler)])}
    systems |= {
        f"HYBRID, weight {weight:g}": Fusion("hybrid", [(1.0, cosine), (weight, words)]) for weight in LEXICAL_WEIGHTS
    }
    return {
        name: means(search(system, experiment.data, task, 1, experiment.order).gold, ["MRR", "R@10", "R@300"])
        for name, system in systems.items()
    }
