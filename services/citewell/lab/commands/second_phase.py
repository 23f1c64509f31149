"""`citewell train second-phase`: learns to rank HYBRID's best candidates again, for the index."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from citewell.index.second_phase import FEATURES
from citewell.index.second_phase_model import model_text, read_model
from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    Cache,
    Data,
    Encoder,
    QueryMapFile,
    TermWeightsFile,
    TheMode,
    WindowEncoderFolder,
    failing_clearly,
    progress,
    writable,
)
from citewell.lab.experiment import Encoding, LearnedParts, prepare
from citewell.lab.second_phase.examples import Sparse, drawn, examples, sparse_experiment
from citewell.lab.second_phase.training import Network, Training, figures, ranks, train
from citewell.lab.whole_files import written_whole
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.term_weights import PACKAGED

DEFAULT = Training()


def second_phase(
    data: Data,
    out: Annotated[Path, typer.Argument(help="The model's file, for CITEWELL_INDEX__SECOND_PHASE.", callback=writable)],
    mode: TheMode,
    queries: Annotated[int, typer.Option(help="Train queries; 0 = all.")] = 6000,
    sparse_queries: Annotated[int, typer.Option(help="Train queries of a poorer copy of the corpus; 0 = none.")] = 5000,
    validation_queries: Annotated[int, typer.Option(min=1, help="Validation queries to show figures of.")] = 800,
    units: Annotated[int, typer.Option(min=1, max=256, help="Units of the hidden layer.")] = DEFAULT.units,
    epochs: Annotated[
        int, typer.Option(min=0, help="Passes over the queries; 0 = 4, more for few queries.")
    ] = DEFAULT.epochs,
    trust: Annotated[
        float, typer.Option(min=0, help="Added to the weight of the first phase's score after training.")
    ] = DEFAULT.trust,
    without: Annotated[list[str] | None, typer.Option(help="A feature to leave out; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = DEFAULT.seed,
    sample: Annotated[int, typer.Option(help="Seed of the samples of queries.")] = 13,
    encoder: Encoder = DEFAULT_ENCODER,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
    window_encoder: WindowEncoderFolder = PACKAGED,
) -> None:
    """Trains on the train split, a query's own citations left out of profiles, words and counts."""
    console = Console()
    with failing_clearly(), progress(console) as on_progress:
        if unknown := set(without or ()) - FEATURES.keys():
            raise ValueError(f"--without names unknown features {sorted(unknown)}; known are {', '.join(FEATURES)}")
        names = tuple(name for name in FEATURES if name == "score" or name not in (without or ()))
        encoding, began = Encoding(encoder), time.process_time()
        validation = prepare(
            data,
            "validation",
            mode,
            encoding,
            cache,
            on_progress,
            learned=LearnedParts(query_map, term_weights, window_encoder),
        )
        learned = validation.of_split("train")
        corpora = [examples(learned, drawn(learned, queries, sample), names, on_progress, "train queries")]
        if sparse_queries:
            poor = sparse_experiment(validation.data, mode, encoding, cache, Sparse(), on_progress)
            poor = replace(
                poor,
                query_map=validation.query_map,
                term_weights=validation.term_weights,
                window_encoder=validation.window_encoder,
                encoder_folder=validation.encoder_folder,
            )
            corpora.append(
                examples(poor, drawn(poor, sparse_queries, sample), names, on_progress, "sparse train queries")
            )
        watched = examples(
            validation, drawn(validation, validation_queries, sample), names, on_progress, "validation queries"
        )
        first = figures(watched.gold + 1)
        console.print(f"first phase: {_told(first)}")

        passes = 0

        def on_epoch(epoch: int, network: Network) -> None:
            nonlocal passes
            passes = epoch
            console.print(f"epoch {epoch}: {_told(figures(ranks(network, watched)))}")

        settings = Training(units=units, epochs=epochs, trust=trust, seed=seed)
        network = train(names, corpora, settings, on_epoch)
        card: dict[str, Any] = {
            "trained on": f"the train split of {validation.data.name}, {mode.value}",
            "train queries": [int((corpus.gold >= 0).sum()) for corpus in corpora],
            "validation queries": len(watched.gold),
            "first phase": first,
            "second phase": figures(ranks(network, watched)),
            "CPU minutes": round((time.process_time() - began) / 60, 1),
            "epochs": passes,
            "trust": trust,
            "seed": seed,
        }
        text = model_text(names, network.arrays(), card)
        written_whole(out, text)
    console.print(f"{out} holds model {read_model(text).hash}")


def _told(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
