"""`citewell train RIVAL`: trains a rival of the papers; continues a run that was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    ContextTokens,
    Data,
    PaperTokens,
    TheMode,
    failing_clearly,
    progress,
)
from citewell.lab.experiment import Encoding, prepare
from citewell.lab.origins import origin_of, same_origin
from citewell.lab.rivals.registry import RIVALS
from citewell.lab.rivals.rival import Rival, run_folder
from citewell.lab.training import Budget, TrainingRun, settings_json, train


def add_rivals(app: typer.Typer) -> None:
    """A subcommand for every rival that is trained."""
    for rival in RIVALS.values():
        if rival.learner:
            app.command(rival.name, help=f"Trains {rival.title}, a rival, on the train split.")(_command(rival))


def _command(rival: Rival[Any, Any]) -> Any:
    def train_rival(
        data: Data,
        models: Annotated[Path, typer.Argument(help="Folder of all runs; this one is SET/RIVAL in it.")],
        mode: TheMode,
        settings: Annotated[Path | None, typer.Option(help="JSON file of settings.", exists=True)] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help="A setting as NAME=JSON; repeatable.")] = None,
        cpu_minutes: Annotated[float, typer.Option(min=0, help="CPU time of the whole run.")] = 20.0,
        steps: Annotated[int, typer.Option(min=1, help="The most optimiser steps.")] = 1_000_000,
        turn_minutes: Annotated[float, typer.Option(help="Stop this turn after so long; the next continues.")] = 1e9,
        validate_every: Annotated[float, typer.Option(help="CPU minutes between validations.")] = 3.0,
        threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
        paper_tokens: PaperTokens = 0,
        context_tokens: ContextTokens = 0,
        cache: Cache = DEFAULT_CACHE,
    ) -> None:
        torch.set_num_threads(threads)
        console = Console()
        with failing_clearly(), progress(console) as on_progress:
            given = json.loads(settings.read_text("utf-8")) if settings else {}
            chosen = rival.read_settings({**given, **_named(set_ or [])})
            run = TrainingRun(run_folder(models, data.name, rival.name))
            run.begin(settings_json(chosen))
            encoding = Encoding(paper_tokens=paper_tokens, context_tokens=context_tokens)
            experiment = prepare(data, "validation", mode, encoding, cache, on_progress)
            same_origin(run.path, origin_of(experiment.data, mode))
            if rival.learner is None:
                raise ValueError(f"{rival.name} is not trained")
            learner = rival.learner(chosen, experiment, on_progress)

            def on_step(entry: dict[str, Any]) -> None:
                on_progress("CPU seconds", int(60 * entry["cpu_minutes"]), int(60 * cpu_minutes))
                if "validation_mrr" in entry:
                    told = f"loss {entry['loss']:.4f}, validation MRR {entry['validation_mrr']:.2f}"
                    console.print(f"step {entry['step']}, {entry['cpu_minutes']:.1f} CPU minutes: {told}")

            budget = Budget(cpu_minutes, steps, validate_every)
            done = train(learner, run, budget, on_step, turn_minutes=turn_minutes)
        console.print(f"{run.kept} holds the weights" if done else "the turn is over; the same command continues")

    return train_rival


def _named(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator:
            raise ValueError(f"--set takes NAME=JSON, got {each!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value  # a plain word is a string
    return found
