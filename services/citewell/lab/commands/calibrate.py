"""`citewell train calibration`: fits confidence on validation queries and shows on test queries what it is worth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown

from citewell.index.second_phase_model import configured_model
from citewell.lab import chosen, pictures
from citewell.lab.calibration import Fitted, Flags, Items, Kept, Reliability, fit, kept, reliability
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
from citewell.lab.davinci.exported import ExportedModel
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, OnProgress, prepare
from citewell.lab.sampling import sampled
from citewell.lab.signals import Judged, judge, with_everyday_draft
from citewell.lab.whole_files import written_whole
from citewell.profiler.encoder import GraphEncoder
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.term_weights import PACKAGED
from citewell.recommender.confidence import VERSION, read_calibration, scorer
from citewell.reranker.model_files import read_model_folder
from citewell.reranker.settings import PACKAGED_MODEL
from citewell.scholarly.queries import Strategy

SHOWN = 10
"""Items of an answer that thresholds are tried on."""
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
KINDS = {
    "reranked": ("retrieval", "lexical", "rerank", "margin", "log_rank"),
    "not reranked": ("retrieval", "lexical", "second_margin", "log_rank"),
}
"""Each kind of answer, and the features its table reads. retrieval and lexical tell queries that nothing answers: the
other scores compare the candidates of one query."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One table, and how it does on test queries."""

    fitted: Fitted
    items: int
    reliability: Reliability
    kept: list[Kept]


def calibration(
    data: Data,
    mode: TheMode,
    out: Annotated[Path, typer.Option(help="The JSON file for the recommender.", callback=writable)],
    model: Annotated[Path, typer.Option(help="Folder that `export davinci` wrote.", exists=True)] = PACKAGED_MODEL,
    depth: Annotated[int, typer.Option(min=2, max=300, help="Candidates that the reranker reads in serving.")] = 20,
    queries: Annotated[int, typer.Option(min=10, help="Validation queries to fit on.")] = 1000,
    test_queries: Annotated[int, typer.Option(min=10, help="Test queries to show the figures of.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of both samples.")] = 13,
    second_phase: Annotated[
        str, typer.Option(help="Which model ranks the candidates again: packaged, a file, or none.")
    ] = "packaged",
    weight: Annotated[
        float, typer.Option(min=0, help="Weight of the second phase's scores beside the reranker's, as in serving.")
    ] = chosen.JOINED,
    encoder: Encoder = DEFAULT_ENCODER,
    cache: Cache = DEFAULT_CACHE,
    query_map: QueryMapFile = "",
    term_weights: TermWeightsFile = PACKAGED,
    window_encoder: WindowEncoderFolder = PACKAGED,
    page: Annotated[
        Path | None, typer.Option(help="Write the figures here as Markdown, a picture beside.", callback=writable)
    ] = None,
) -> None:
    """Fits the confidence of items that HYBRID retrieves, reranked and not, and writes it for the recommender."""
    console = Console()
    with failing_clearly(), progress() as on_progress:
        order = configured_model(second_phase)
        encoding = Encoding(encoder)
        loaded, _ = encoding.load()
        exported = ExportedModel(model)
        parts = LearnedParts(query_map, term_weights, window_encoder, second_phase)
        system = "second-phase" if order else "hybrid"
        judged, learned = list[Judged](), ("", "", "")
        for part, (split, count) in enumerate((("validation", queries), ("test", test_queries))):
            experiment = prepare(data, split, mode, encoding, cache, on_progress, learned=parts)
            learned = experiment.learned_hashes
            judged.append(
                _judged(experiment, loaded, exported, count, part, depth, seed, cache, on_progress, system, weight)
            )
    outcomes = {kind: fitted_on(kind, names, judged[0], judged[1], depth) for kind, names in KINDS.items()}
    hashes = {"reranked": read_model_folder(model).hash, "not reranked": ""}
    tables = [
        {
            "strategy": Strategy.HYBRID.value,
            "encoder": scorer(loaded.model_hash, *learned),
            "reranked": bool(hashes[kind]),
            "reranker": hashes[kind],
            "features": list(outcome.fitted.names),
            "weights": [round(each, 6) for each in outcome.fitted.weights],
            "bias": round(outcome.fitted.bias, 6),
        }
        | ({"second_phase": order.hash} if order else {})
        | ({"second_phase_weight": weight} if order and weight and hashes[kind] else {})
        for kind, outcome in outcomes.items()
    ]
    written = json.dumps({"version": VERSION, "tables": [*tables, *_other_tables(out, tables)]}, indent=1)
    read_calibration(written)  # what the recommender would refuse is not written
    written_whole(out, written + "\n")
    text = "\n\n".join(_told(kind, outcome) for kind, outcome in outcomes.items())
    console.print(Markdown(text))
    if page:
        page.write_text(text + "\n", encoding="utf-8")
        pictures.reliability({kind: each.reliability for kind, each in outcomes.items()}, page.with_suffix(""))


def _other_tables(out: Path, fitted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tables for the other order of candidates, or for other rerankers, that the file has already."""
    if not out.exists():
        return []

    def about(table: dict[str, Any]) -> tuple[bool, str]:
        return "second_phase" in table, table["reranker"]

    new = {about(table) for table in fitted}
    return [table for table in json.loads(out.read_text("utf-8"))["tables"] if about(table) not in new]


def _judged(
    experiment: Experiment,
    encoder: GraphEncoder,
    model: ExportedModel,
    count: int,
    part: int,
    depth: int,
    seed: int,
    cache: Path,
    on_progress: OnProgress,
    system: str,
    weight: float,
) -> Judged:
    drawn = sampled(experiment.task.queries, count, seed)
    grown, everyday = with_everyday_draft(experiment, encoder)
    # One half of the everyday sentences to fit on, the other to show.
    return judge(grown, drawn, everyday[part::2], depth, model, cache, on_progress, system, weight)


def fitted_on(kind: str, names: tuple[str, ...], learned: Judged, shown: Judged, depth: int) -> Outcome:
    """A table fitted on the first queries, and its figures on the others."""
    reranked = kind == "reranked"
    items = learned.items(depth, reranked=reranked)
    fitted = fit(items, names)
    test = shown.items(depth, reranked=reranked)
    confidence = fitted.confidence(test)
    related = ~test.unrelated
    best = _first(test, SHOWN)
    return Outcome(
        fitted,
        len(items.right),
        reliability(confidence[related], test.right[related]),
        kept(test.take(best), confidence[best], THRESHOLDS),
    )


def _first(items: Items, count: int) -> Flags:
    """The items whose rank is at most `count`."""
    first: Flags = items.features[:, items.names.index("log_rank")] <= np.log(count) + 1e-9
    return first


def _told(kind: str, outcome: Outcome) -> str:
    found = outcome.reliability
    weights = ", ".join(
        f"{name} {weight:+.3f}" for name, weight in zip(outcome.fitted.names, outcome.fitted.weights, strict=True)
    )
    bins = "\n".join(
        f"| {one.said:.3f} | {one.right:.3f} [{one.low:.3f}, {one.high:.3f}] | {one.count:,} |" for one in found.bins
    )
    least = "\n".join(
        f"| {one.least:g} | {one.items:.1f} | {one.right:.1%} | {one.found:.1%} | "
        f"{one.empty:.1%} | {one.empty_unrelated:.0%} |"
        for one in outcome.kept
    )
    return f"""## HYBRID, {kind}

Fitted on {outcome.items:,} items: {weights}, bias {outcome.fitted.bias:+.3f}. On test: expected calibration error
**{found.error:.4f}**, Brier score {found.brier:.4f}.

| said | right | items |
| --- | --- | --- |
{bins}

| min_confidence | items of {SHOWN} | the cited paper | cited papers kept | empty answers | everyday: empty |
| --- | --- | --- | --- | --- | --- |
{least}"""
