"""Measures the figures of the retrieval report and returns them as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from citewell.lab import chosen
from citewell.lab.beyond import VARIANTS
from citewell.lab.breakdowns import SHOWN, TOP, breakdowns, fairness_by_in_degree, fairness_by_year
from citewell.lab.experiment import NOTHING_LEARNED, Encoding, Experiment, OnProgress, prepare
from citewell.lab.mentions import FOUND_LABELS, mentions
from citewell.lab.metrics import METRICS, Ranks, compare, estimate, means
from citewell.lab.protocol import Mode, counts
from citewell.lab.retrieval import Ranking, search
from citewell.lab.sweeps import Landscape, sweep
from citewell.lab.systems import System
from citewell.lab.systems_by_name import SYSTEMS

SEED = 2026
VALIDATION_QUERIES = 1_000
"""The number of validation contexts on which settings are compared: one fixed, seeded sample for all settings."""
UNTRAINED = tuple(name for name in SYSTEMS if name != "second-phase")
"""The systems of the report: retrieval without anything learned. What learning adds has pages of its own."""
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """A data set and its options in the report."""

    name: str
    mode: Mode
    encoding: Encoding
    abstracts_leak: bool = False
    """Whether having an abstract leaks the answer; a figure without abstracts is then reported too."""


SETS = (
    EvaluationSet("neurips25", Mode.INDUCTIVE_CONTEMPORARY, Encoding(paper_tokens=128, context_tokens=256)),
    EvaluationSet("acl", Mode.INDUCTIVE, Encoding(paper_tokens=256, context_tokens=256), abstracts_leak=True),
)


def measure_sweeps(folder: Path, which: EvaluationSet, cache: Path, on_progress: OnProgress) -> Figures:
    """Landscapes of α, β and γ on validation, with normalised and with raw vectors."""
    made: Figures = {}
    for name, raw in (("normalised", False), ("raw", True)):
        encoding = Encoding(which.encoding.encoder, which.encoding.paper_tokens, which.encoding.context_tokens, raw)
        experiment = _sampled(_prepared(folder, "validation", which, cache, on_progress, encoding))
        landscape = sweep(experiment, lambda done, total, name=name: on_progress(f"sweep, {name}", done, total))  # type: ignore[misc]
        made[name] = as_json(landscape)
        made["queries"] = len(experiment.task.queries)
    return made


def as_json(landscape: Landscape) -> Figures:
    """A landscape as plain lists."""
    return {
        "gammas": landscape.gammas,
        "alphas": landscape.alphas,
        "betas": landscape.betas,
        "metrics": {metric: np.round(grid, 3).tolist() for metric, grid in landscape.metrics.items()},
    }


def from_json(stated: Figures) -> Landscape:
    """The landscape `as_json` wrote."""
    grids = {metric: np.array(grid) for metric, grid in stated["metrics"].items()}
    return Landscape(tuple(stated["gammas"]), tuple(stated["alphas"]), tuple(stated["betas"]), grids)


def measure_variants(folder: Path, which: EvaluationSet, cache: Path, on_progress: OnProgress) -> Figures:
    """Quality and cost of every variant beyond eq. 3 on validation."""
    experiment = _sampled(_prepared(folder, "validation", which, cache, on_progress))
    clusters = experiment.data.contexts.citing[experiment.task.queries]
    rows: list[Figures] = []
    base: Ranks | None = None
    for make in VARIANTS:
        ranking, prepared = _search(experiment, make(experiment), on_progress)
        base = ranking.gold if base is None else base
        difference = compare("MRR", ranking.gold, base, np.random.default_rng(SEED), clusters)
        rows.append(
            {
                "name": prepared.name,
                "metrics": means(ranking.gold),
                "bracket": means(ranking.bracket),
                "against eq. 3": asdict(difference),
                "ms per query": 1000 * ranking.cpu_seconds / len(ranking.queries),
            }
        )
    return {"queries": len(experiment.task.queries), "rows": rows}


def measure_test(folder: Path, which: EvaluationSet, cache: Path, on_progress: OnProgress) -> Figures:
    """Every system without learned parts on the test split, once."""
    experiment = _prepared(folder, "test", which, cache, on_progress)
    data, task = experiment.data, experiment.task
    rankings, prepared = {}, {}
    for name in UNTRAINED:
        began = time.perf_counter()
        system = SYSTEMS[name](experiment)
        prepared[name] = time.perf_counter() - began
        rankings[name], _ = _search(experiment, system, on_progress)
    top = {name: ranking.papers for name, ranking in rankings.items()}
    found = mentions(data, experiment.known, task.queries)
    made: Figures = {
        "mode": which.mode.value,
        "vectors": experiment.vectors.provenance,
        "counts": counts(data, task),
        "systems": {
            name: {
                "metrics": _estimates(ranking, experiment),
                "bracket": means(ranking.bracket),
                "seconds": ranking.seconds,
                "cpu seconds": ranking.cpu_seconds,
                "seconds to prepare": prepared[name],
            }
            for name, ranking in rankings.items()
        },
        "one by one": _one_by_one(experiment, on_progress),
        "against": _comparisons(experiment, rankings),
        "breakdowns": [
            {
                "title": breakdown.title,
                "systems": {name: breakdown.rows(ranking.gold) for name, ranking in rankings.items()},
            }
            for breakdown in breakdowns(data, experiment.known, task.queries)
        ],
        "fairness": {
            "in-degree": [asdict(s) for s in fairness_by_in_degree(data, experiment.known, task.queries, top)],
            "year": [asdict(s) for s in fairness_by_year(data, task.queries, top)],
        },
        "mentions": _mentions(found.found, found.in_degree, rankings),
    }
    if which.abstracts_leak:
        made["titles only"] = _titles_only(folder, which, cache, on_progress)
        made["fulltext only"] = _one_source(experiment, rankings, "fulltext")
    return made


def _prepared(
    folder: Path,
    split: str,
    which: EvaluationSet,
    cache: Path,
    on_progress: OnProgress,
    encoding: Encoding | None = None,
    *,
    titles_only: bool = False,
) -> Experiment:
    """The set without anything learned."""
    return prepare(
        folder,
        split,
        which.mode,
        encoding or which.encoding,
        cache,
        on_progress,
        titles_only=titles_only,
        learned=NOTHING_LEARNED,
    )


def _sampled(experiment: Experiment) -> Experiment:
    queries = experiment.task.queries
    drawn = np.random.default_rng(SEED).permutation(queries)[:VALIDATION_QUERIES]
    return replace(experiment, task=replace(experiment.task, queries=np.sort(drawn)))


def _search(experiment: Experiment, system: System, on_progress: OnProgress) -> tuple[Ranking, System]:
    ranking = search(
        system,
        experiment.data,
        experiment.task,
        TOP,
        experiment.order,
        lambda done, total: on_progress(system.name, done, total),
        brackets=experiment.brackets,
    )
    return ranking, system


def _one_by_one(experiment: Experiment, on_progress: OnProgress) -> float:
    """CPU milliseconds per query of the Profiler, with queries scored one at a time."""
    alone = replace(experiment, task=replace(experiment.task, queries=experiment.task.queries[:500]))
    ranking = search(alone.profiler, alone.data, alone.task, TOP, alone.order, block=1)
    return 1000 * ranking.cpu_seconds / len(ranking.queries)


def _estimates(ranking: Ranking, experiment: Experiment) -> Figures:
    rng, clusters = np.random.default_rng(SEED), experiment.data.contexts.citing[ranking.queries]
    return {metric: asdict(estimate(metric, ranking.gold, rng, clusters)) for metric in METRICS}


def _comparisons(experiment: Experiment, rankings: dict[str, Ranking]) -> list[Figures]:
    clusters = experiment.data.contexts.citing[experiment.task.queries]
    pairs = [("profiler", other) for other in ("content", "bm25", "bm25-contexts")]
    pairs += [("hybrid", other) for other in ("profiler", "bm25-contexts", "lexical-profile")]
    return [
        {
            "first": first,
            "second": second,
            "metric": metric,
            **asdict(
                compare(metric, rankings[first].gold, rankings[second].gold, np.random.default_rng(SEED), clusters)
            ),
        }
        for first, second in pairs
        for metric in ("MRR", "R@10", "R@300")
    ]


def _mentions(found: Ranks, in_degree: Ranks, rankings: dict[str, Ranking]) -> Figures:
    bands = {"all": (0, None), "0": (0, 0), "1": (1, 1), "2–5": (2, 5), "6–20": (6, 20), "over 20": (21, None)}
    shares = {}
    for band, (low, high) in bands.items():
        inside = (in_degree >= low) & (in_degree <= (np.inf if high is None else high))
        if inside.any():
            shares[band] = {
                "queries": int(inside.sum()),
                **{label: 100 * float((found[inside] == kind).mean()) for kind, label in FOUND_LABELS.items()},
            }
    hits = {
        label: {name: means(ranking.gold[found == kind], SHOWN) for name, ranking in rankings.items()}
        for kind, label in FOUND_LABELS.items()
        if (found == kind).any()
    }
    return {"shares": shares, "hits": hits}


def _titles_only(folder: Path, which: EvaluationSet, cache: Path, on_progress: OnProgress) -> Figures:
    bare = _prepared(folder, "test", which, cache, on_progress, titles_only=True)
    return {name: _estimates(_search(bare, SYSTEMS[name](bare), on_progress)[0], bare) for name in UNTRAINED}


def _one_source(experiment: Experiment, rankings: dict[str, Ranking], source: str) -> Figures:
    contexts = experiment.data.contexts
    kept = contexts.source[experiment.task.queries] == contexts.sources.index(source)
    rng, clusters = np.random.default_rng(SEED), contexts.citing[experiment.task.queries][kept]
    return {
        name: {metric: asdict(estimate(metric, ranking.gold[kept], rng, clusters)) for metric in METRICS}
        for name, ranking in rankings.items()
    }


def chosen_settings() -> Figures:
    """The settings of `chosen`, as the report states them."""
    return {
        "eq. 3": asdict(chosen.PROFILE),
        "eq. 4": asdict(chosen.QUERY),
        "BM25 of the lexical profile": asdict(chosen.BM25),
        "words of a paper": asdict(chosen.FIELDS),
        "words of a query": asdict(chosen.TERMS),
        "HYBRID = eq. 5 + w · lexical profile": {"w": chosen.LEXICAL},
    }


def folders(data: Path, wanted: Iterable[str]) -> list[tuple[EvaluationSet, Path]]:
    """The evaluation sets whose folders exist."""
    return [(which, data / which.name) for which in SETS if which.name in set(wanted)]
