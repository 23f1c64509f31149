"""`citewell evaluate ilciter`: papers ranked by evidence spans, in the layout of ILCiteR's Tables 4 and 5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown

from citewell.lab.commands.options import (
    DEFAULT_CACHE,
    SEED,
    Cache,
    Data,
    Split,
    TheMode,
    failing_clearly,
    progress,
    writable,
)
from citewell.lab.experiment import Encoding, prepare
from citewell.lab.ilciter import CONDITIONAL, METHODS, OKAPI, PLUS, SpanStore, evaluate
from citewell.lab.metrics import compare, estimate
from citewell.lab.retrieval import search
from citewell.lab.sampling import sampled
from citewell.lab.systems_by_name import SYSTEMS

SHOWN = ("MRR", "R@1", "R@3", "R@5", "R@10")
TABLES = {
    "Table 4: lexical rankings and conditional ensembling": (OKAPI, PLUS, CONDITIONAL),
    "Table 5: embeddings, naive ensembles and conditional ensembling": (
        *tuple(name for name in METHODS if name not in (OKAPI, PLUS, CONDITIONAL)),
        CONDITIONAL,
    ),
}
BESIDE = ("profiler", "lexical-profile", "hybrid")


def ilciter(
    data: Data,
    mode: TheMode,
    split: Split = "validation",
    queries: Annotated[int, typer.Option(min=1, help="Size of the sample of the split's queries.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 13,
    titles_only: Annotated[bool, typer.Option(help="Leave all abstracts out.")] = False,
    cache: Cache = DEFAULT_CACHE,
    out: Annotated[Path | None, typer.Option(help="Write the tables here as Markdown.", callback=writable)] = None,
) -> None:
    """Ranks papers by the spans for which train papers cite them, over queries whose cited paper has a span."""
    with failing_clearly(), progress() as on_progress:
        experiment = prepare(data, split, mode, Encoding(), cache, on_progress, titles_only=titles_only)
        store = SpanStore(experiment)
        drawn = sampled(experiment.task.queries, queries, seed)
        asked = drawn[store.papers[experiment.data.contexts.cited[drawn]]]
        ranks = evaluate(experiment, store, asked, on_progress)
        task = replace(experiment.task, queries=asked)
        for name in BESIDE:
            ranks[name] = search(SYSTEMS[name](experiment), experiment.data, task, 10, experiment.order).gold
    clusters = experiment.data.contexts.citing[asked]
    lines = [
        f"{len(store.texts):,} spans of {len(experiment.known.contexts):,} train contexts, "
        f"{store.mean_length:.1f} words each; {len(asked)} of {len(drawn)} {split} queries cite one of "
        f"the {int(store.papers.sum()):,} papers that are cited for a span.",
    ]
    tables = {**TABLES, "What else citewell retrieves with, on the same queries": (CONDITIONAL, *BESIDE)}
    for title, methods in tables.items():
        lines += ["", f"**{title}**", "", f"| method | {' | '.join(SHOWN)} | MRR − conditional | p |"]
        lines.append("|" + " --- |" * (len(SHOWN) + 3))
        for method in methods:
            rng = np.random.default_rng(SEED)
            cells = [estimate(metric, ranks[method], rng, clusters) for metric in SHOWN]
            figures = [f"{each.mean:.2f} [{each.low:.2f}, {each.high:.2f}]" for each in cells[:1]]
            figures += [f"{each.mean:.2f}" for each in cells[1:]]
            against = ["", ""]
            if method != CONDITIONAL:
                difference = compare("MRR", ranks[method], ranks[CONDITIONAL], rng, clusters)
                against = [f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"]
                against.append(f"{difference.p:.2g}")
            lines.append(f"| {method} | {' | '.join([*figures, *against])} |")
    text = "\n".join(lines) + "\n"
    Console().print(Markdown(text))
    if out:
        out.write_text(text, encoding="utf-8")
