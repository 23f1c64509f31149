"""`citewell train`: trains models on a data set; continues a killed run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from citewell.lab.commands.calibrate import calibration
from citewell.lab.commands.citation_need import citation_need
from citewell.lab.commands.encoder import encoder
from citewell.lab.commands.everything import everything
from citewell.lab.commands.options import QueryMapFile, TermWeightsFile, WindowEncoderFolder, failing_clearly, progress
from citewell.lab.commands.query_map import query_map
from citewell.lab.commands.rivals import add_rivals
from citewell.lab.commands.second_phase import second_phase
from citewell.lab.commands.term_weights import term_weights
from citewell.lab.commands.window_encoder import window_encoder
from citewell.lab.davinci.card import write_card, write_curves
from citewell.lab.davinci.retrieve import training_data
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.davinci.train import train
from citewell.lab.experiment import Encoding, LearnedParts, prepare
from citewell.lab.protocol import Mode
from citewell.profiler.term_weights import PACKAGED

app = typer.Typer(no_args_is_help=True, help=__doc__)


app.command("calibration")(calibration)
app.command("query-map")(query_map)
app.command("term-weights")(term_weights)
app.command("encoder")(encoder)
app.command("window-encoder")(window_encoder)
app.command("all")(everything)
app.command("citation-need")(citation_need)
app.command("second-phase")(second_phase)
add_rivals(app)


@app.callback()
def models() -> None:
    """Trains models."""


@app.command("davinci")
def davinci(
    data: Annotated[Path, typer.Argument(help="Folder of one data set: papers, contexts, splits.", exists=True)],
    run: Annotated[Path, typer.Argument(help="Folder of the run; a run in it is continued.")],
    mode: Annotated[Mode, typer.Option(help="Which protocol is followed.")],
    cache: Annotated[Path, typer.Option(help="Where text vectors are kept.", envvar="CITEWELL_LAB_CACHE")],
    settings: Annotated[
        Path | None,
        typer.Option(help="JSON file like a run's settings.json; defaults where it is silent.", exists=True),
    ] = None,
    paper_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a paper; 0 is its limit.")] = 0,
    context_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a context; 0 is its limit.")] = 0,
    encoder: Annotated[str | None, typer.Option(help="ENC2: minilm, a folder, or a Hugging Face id.")] = None,
    heads: Annotated[list[str] | None, typer.Option(help="The model, then rivals trained along with it.")] = None,
    candidates: Annotated[str | None, typer.Option(help="profiler or hybrid.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random draws.")] = None,
    map_file: QueryMapFile = "",
    term_weights_file: TermWeightsFile = PACKAGED,
    window_folder: WindowEncoderFolder = PACKAGED,
) -> None:
    """Trains DAVINCI (and rivals) on the train split, watched on validation."""
    given = {"encoder": encoder, "candidates": candidates, "steps": steps, "device": device, "seed": seed}
    named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if heads:
        named["heads"] = tuple(heads)
    console = Console()
    with failing_clearly(), progress(console) as on_progress:
        chosen = replace(TrainSettings.read(settings) if settings else TrainSettings(), **named)

        def on_step(entry: dict[str, Any]) -> None:
            on_progress("steps", entry["step"], chosen.steps)
            if "validation_mrr" in entry:
                found = ", ".join(f"{name} {mrr:.2f}" for name, mrr in entry["validation_mrr"].items())
                console.print(f"step {entry['step']}: validation MRR {found}")

        encoding = Encoding(paper_tokens=paper_tokens, context_tokens=context_tokens)
        experiment = prepare(
            data,
            "validation",
            mode,
            encoding,
            cache,
            on_progress,
            learned=LearnedParts(map_file, term_weights_file, window_folder),
        )
        finished = train(chosen, training_data(chosen, experiment, on_progress, RunFolder(run)), run, on_step)
    write_curves(finished)
    write_card(finished, data_name=experiment.data.name, vectors=experiment.vectors.provenance)
    console.print(f"{finished.weights} holds the weights of the {chosen.keep} validation")
