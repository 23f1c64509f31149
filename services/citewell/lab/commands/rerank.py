"""`citewell evaluate rerank`: evaluates a trained reranker on the lab's candidate lists; continues a stopped run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from citewell.lab import chosen
from citewell.lab.commands.options import (
    Encoder,
    QueryMapFile,
    Split,
    TermWeightsFile,
    WindowEncoderFolder,
    failing_clearly,
    progress,
    writable,
)
from citewell.lab.commands.tables import Output, TheOutput, console, print_csv, print_json
from citewell.lab.protocol import Mode
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.term_weights import PACKAGED
from citewell.reranker.pairs import TokenBudget


def asked_budget(trained: TokenBudget, fields: str) -> TokenBudget:
    """The budget of training with what `--budget` changes; says what is wrong with it."""
    try:
        return trained.changed(fields)
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint="--budget") from None


def rerank(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, or of an exported model.", exists=True)],
    data: Annotated[Path, typer.Argument(help="Folder of one data set: papers, contexts, splits.", exists=True)],
    mode: Annotated[Mode, typer.Option(help="Which protocol the figures follow.")],
    cache: Annotated[Path, typer.Option(help="Where text vectors and scores are kept.", envvar="CITEWELL_LAB_CACHE")],
    split: Split = "validation",
    queries: Annotated[int, typer.Option(help="Size of the sample of the split's queries.")] = 1000,
    depth: Annotated[int, typer.Option(help="k: candidates per query.")] = 100,
    candidates: Annotated[
        str,
        typer.Option(help="profiler, hybrid or second-phase; by default the run's own (an exported model: profiler)."),
    ] = "",
    weight: Annotated[
        float,
        typer.Option(min=0, help="With second-phase: weight of its scores beside the reranker's log-odds."),
    ] = chosen.JOINED,
    encoder: Encoder = DEFAULT_ENCODER,
    paper_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a paper; 0 is its limit.")] = 0,
    context_tokens: Annotated[int, typer.Option(help="Tokens ENC1 reads of a context; 0 is its limit.")] = 0,
    titles_only: Annotated[bool, typer.Option(help="Leave all abstracts out.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    device: Annotated[str, typer.Option(help="cpu: the serving runtime; cuda: torch.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the sample of queries.")] = 13,
    budget: Annotated[
        str, typer.Option(help="Token budgets other than in training, such as context=24,candidate=20.")
    ] = "",
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
    window_encoder: WindowEncoderFolder = PACKAGED,
    out: Annotated[Path | None, typer.Option(help="Write the tables here as Markdown.", callback=writable)] = None,
    output: TheOutput = Output.TEXT,
    keep: Annotated[
        Path | None, typer.Option(help="Write the model's ranks here, for --against.", callback=writable)
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Ranks another run kept: compare with them.", exists=True)
    ] = None,
) -> None:
    """Prints Tables 3, 4 and 6 of one run: every head beside the retrieval order, on the same queries.

    With the second phase's candidates, the first is the order that is served: log-odds plus that phase's scores.
    """
    from citewell.inference.sessions import Precision, cpu_has_bf16
    from citewell.lab.davinci import evaluation
    from citewell.lab.davinci.batches import PairBatches
    from citewell.lab.davinci.exported import ExportedModel, starting_point
    from citewell.lab.davinci.retrieve import asked_lists
    from citewell.lab.davinci.scoring import exported_encode, joined, score_cached, served_encode, torch_encode
    from citewell.lab.experiment import Encoding, LearnedParts, prepare

    with failing_clearly(), progress() as on_progress:
        folder = starting_point(run)
        settings, model = folder.settings, folder.model()
        tokenizer = folder.tokenizer(asked_budget(settings.budget, budget))
        encoding = Encoding(encoder, paper_tokens=paper_tokens, context_tokens=context_tokens)
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
        lists, texts = asked_lists(
            settings, experiment, queries, on_progress, depth=depth, seed=seed, candidates=candidates
        )
        pairs = PairBatches(lists, texts, tokenizer, settings.decay)
        if device == "cpu":
            precision = Precision.BF16 if cpu_has_bf16() else Precision.FP32
            if isinstance(folder, ExportedModel):
                encode = exported_encode(run, precision, threads)
            else:
                encode = served_encode(folder.encoder_config, model, precision, threads)
        else:
            encode = torch_encode(model.to(device), "bf16")
        scores = score_cached(
            model, pairs, encode, cache / "scores", lambda done: on_progress("queries scored", done, len(lists))
        )
    heads = settings.heads
    if weight and (candidates or settings.candidates) == "second-phase":
        name = f"{heads[0]} + {weight:g} · second phase"
        scores, heads = {name: joined(scores[heads[0]], lists, weight), **scores}, (name, *heads)
    reranked = evaluation.Reranked(experiment.data, lists, scores)
    compared = ""
    if against:
        other = evaluation.KeptRanks.load(against)
        compared = "\n" + evaluation.against(reranked, heads[0], other, against.stem) + "\n"
    if keep:
        evaluation.KeptRanks.of(reranked, heads[0]).save(keep)
    whole = evaluation.report(reranked, heads) + compared
    if output is Output.TEXT:
        console(output).print(Markdown(evaluation.report(reranked, heads, short=True) + compared))
    elif output is Output.MARKDOWN:
        print(whole)
    else:
        names = [evaluation.RETRIEVAL, *heads]
        figures = [
            *evaluation.estimates(reranked, names),
            *evaluation.estimates(reranked, names, bracket=True),
        ]
        (print_csv if output is Output.CSV else print_json)(figures)
    if out:
        out.write_text(whole, encoding="utf-8")
