"""The retrieval report: measures missing figures, and writes Markdown and figures.

    python -m citewell.lab.report DATA --out deploy/docs/results [--sets neurips25 --sets acl] [--fresh]

Results are kept as JSON beside the vectors (`--cache`), so that pages can be rewritten without measuring again.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from citewell.lab import chosen, pictures
from citewell.lab.bench_report import environment, markdown_table
from citewell.lab.commands.options import DEFAULT_CACHE, Cache, progress
from citewell.lab.experiment import OnProgress
from citewell.lab.measure import (
    SETS,
    EvaluationSet,
    Figures,
    chosen_settings,
    folders,
    from_json,
    measure_sweeps,
    measure_test,
    measure_variants,
)

Measure = Callable[[Path, EvaluationSet, Path, OnProgress], Figures]
STAGES: dict[str, Measure] = {"sweeps": measure_sweeps, "variants": measure_variants, "test": measure_test}
COMMAND = "python -m citewell.lab.report $CITEWELL_DATA --out deploy/docs/results"
PACKAGES = ("numpy", "scipy", "bm25s", "openvino")
NAMES = {
    "profiler": "Profiler (eq. 3–5)",
    "content": "content only (α = β = 0)",
    "bm25": "BM25, papers",
    "bm25-contexts": "BM25, papers + train contexts",
    "lexical-profile": "lexical public profile",
    "hybrid": "HYBRID",
    "second-phase": "HYBRID, second phase",
}


def report(
    data: Annotated[Path, typer.Argument(help="Folder that holds the data sets, one folder each.", exists=True)],
    out: Annotated[Path, typer.Option(help="Where the pages go.")],
    sets: Annotated[list[str] | None, typer.Option(help="Data sets to report.")] = None,
    stage: Annotated[list[str] | None, typer.Option(help=f"Stages to measure again: {', '.join(STAGES)}.")] = None,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Measures each stage that has no figures yet, and writes the pages."""
    figures: dict[str, dict[str, Figures]] = {}
    for which, folder in folders(data, sets or [known.name for known in SETS]):
        figures[which.name] = {}
        for name, measure in STAGES.items():
            kept = cache / f"{which.name}-{name}.json"
            if not kept.exists() or name in (stage or ()):
                with progress() as on_progress:
                    made = measure(folder, which, cache, on_progress) | {"commit": _commit()}
                kept.write_text(json.dumps(made, indent=1))
            figures[which.name][name] = json.loads(kept.read_text())
        if (kept := cache / f"{which.name}-served.json").exists():  # written by `citewell evaluate served --json`
            figures[which.name]["served"] = json.loads(kept.read_text())
    out.mkdir(parents=True, exist_ok=True)
    for page, write in {"retrieval": summary, "retrieval-sweeps": sweeps, "retrieval-beyond": beyond}.items():
        (out / f"{page}.md").write_text(write(figures, out))


def summary(figures: dict[str, dict[str, Figures]], out: Path) -> str:
    """The main page: every system on the test splits."""
    parts = [
        "# Retrieval measured\n",
        "Settings were chosen on validation ([sweeps](retrieval-sweeps.md), [beyond eq. 3](retrieval-beyond.md)); each "
        "test split was ranked once with them. Intervals and tests resample whole citing papers, since the contexts of "
        "one paper are not independent; p-values come from 20,000 random sign flips. Nothing here is learned: what "
        "[term weights, window encoder and second phase](learned.md) add to HYBRID has pages of its own.\n",
        _provenance(figures, "test"),
        "\n## Findings\n",
        *(_findings(name, stages["test"]) for name, stages in figures.items()),
    ]
    for name, stages in figures.items():
        test = stages["test"]
        parts += [f"\n## {name}\n", _protocol(test), "\n### Test split\n", _systems_table(test["systems"]), ""]
        parts += ["Paired differences on the same queries, in points:\n", _differences_table(test["against"]), ""]
        if "served" in stages:
            parts += ["### Through the running index service\n", _served(stages["served"]), ""]
        parts += ["### Time\n", _times(test), "\n### All metrics, in %\n", _all_metrics(test["systems"]), ""]
        for title in ("titles only", "fulltext only"):
            if title in test:
                rows = {system: {"metrics": metrics} for system, metrics in test[title].items()}
                parts += [f"### {title.capitalize()}\n", _systems_table(rows), ""]
        parts += ["### Where each system is good (MRR / R@10 / R@300, %)\n"]
        parts += [_breakdown_table(breakdown) + "\n" for breakdown in test["breakdowns"]]
        parts += ["### Why lexical public profiles are strong\n", _mentions(name, test["mentions"])]
        parts += ["\n### What the top 10 favours\n", _fairness(name, test["fairness"], out)]
    return "\n".join(parts) + "\n"


def sweeps(figures: dict[str, dict[str, Figures]], out: Path) -> str:
    """The landscapes of α, β and γ."""
    alpha, beta = chosen.PROFILE.alpha, chosen.PROFILE.beta
    gamma = chosen.QUERY.gamma
    parts = [
        "# α, β, γ and δ swept on validation\n",
        f"{chosen.REASON}\n",
        _provenance(figures, "sweeps"),
    ]
    for name, stages in figures.items():
        made = stages["sweeps"]
        rows = []
        for kind in ("normalised", "raw"):
            landscape = from_json(made[kind])
            for metric in ("MRR", "R@10", "R@300"):
                best = landscape.best(metric)
                grid = landscape.metrics[metric]
                rows.append(
                    [
                        f"{kind}, {metric}",
                        f"{grid.max():.2f}",
                        f"({best[0]:g}, {best[1]:g}, {best[2]:g})",
                        f"{landscape.at(metric, alpha, beta, gamma):.2f}",
                        f"{landscape.at(metric, 0.8, 0.2, 0.6):.2f}",
                        f"{landscape.at(metric, 0.0, 0.0, gamma):.2f}",
                    ]
                )
            stem = out / f"sweep-{name}-{kind}"
            pictures.landscape(landscape, ("MRR", "R@10", "R@300"), f"{name}, validation, {kind} vectors", stem)
        landscape = from_json(made["normalised"])
        pictures.ablation(landscape, alpha, beta, f"{name}, validation", out / f"ablation-{name}")
        header = [
            "vectors, metric",
            "best",
            "at (α, β, γ)",
            "chosen setting",
            "paper's (0.8, 0.2), γ = 0.6",
            "α = β = 0",
        ]
        parts += [f"\n## {name}, {made['queries']:,} validation contexts\n", markdown_table(header, rows), ""]
        parts += [f"![Landscape, {kind} vectors](sweep-{name}-{kind}.svg)\n" for kind in ("normalised", "raw")]
        parts += [f"![R@10 with and without the public profile](ablation-{name}.svg)\n"]
    return "\n".join(parts) + "\n"


def beyond(figures: dict[str, dict[str, Figures]], out: Path) -> str:
    """Quality and cost of each variant beyond eq. 3 on validation."""
    without = "Nothing here is learned: HYBRID is served with [learned weights of words](learned.md#term-weights).\n"
    parts = ["# Beyond eq. 3\n", f"{chosen.HYBRID_REASON}\n", without, _provenance(figures, "variants")]
    for name, stages in figures.items():
        made = stages["variants"]
        header = ["variant", "MRR", "R@10", "R@300", "R@1000", "MRR against eq. 3", "p", "CPU ms a query"]
        rows = [
            [
                row["name"],
                *(f"{row['metrics'][metric]:.1f}" for metric in ("MRR", "R@10", "R@300", "R@1000")),
                _signed(row["against eq. 3"]) if number else "",
                f"{row['against eq. 3']['p']:.1g}" if number else "",
                f"{row['ms per query']:.1f}",
            ]
            for number, row in enumerate(made["rows"])
        ]
        parts += [f"\n## {name}, {made['queries']:,} validation contexts\n", markdown_table(header, rows)]
    parts += ["\n## The settings\n", "```json", json.dumps(chosen_settings(), indent=1), "```"]
    return "\n".join(parts) + "\n"


def _provenance(figures: dict[str, dict[str, Figures]], stage: str) -> str:
    commits = sorted({stages[stage]["commit"] for stages in figures.values()})
    vectors = {name: stages["test"]["vectors"] for name, stages in figures.items()}
    lines = [f"Command: `{COMMAND}`; commit {', '.join(commits)}. {environment(PACKAGES)} The cores are shared."]
    lines += [f"Vectors of {name}: {vectors_of}." for name, vectors_of in vectors.items()]
    return "  \n".join(lines)


def _findings(name: str, test: Figures) -> str:
    def mean(system: str, metric: str) -> float:
        return float(test["systems"][system]["metrics"][metric]["mean"])

    def verdict(reached: bool) -> str:
        return "reached" if reached else "not reached"

    differences = {(d["first"], d["second"], d["metric"]): d for d in test["against"]}
    bm25 = differences["profiler", "bm25", "MRR"]
    contexts = differences["profiler", "bm25-contexts", "MRR"]
    gain = 100 * (mean("hybrid", "MRR") / mean("profiler", "MRR") - 1)
    points = mean("hybrid", "R@300") - mean("profiler", "R@300")
    uncited = {system: rows[0][2]["MRR"] for system, rows in test["breakdowns"][0]["systems"].items()}
    times = {system: row["cpu seconds"] for system, row in test["systems"].items()}
    return "\n".join(
        [
            f"**{name}**\n",
            f"- HYBRID over eq. 3: MRR {gain:+.0f} % (aim +50 %: {verdict(gain >= 50)}), R@300 {points:+.1f} points "
            f"(aim +7: {verdict(points >= 7)}).",
            f"- Public profiles raise eq. 3 above content only ({mean('content', 'MRR'):.1f} to "
            f"{mean('profiler', 'MRR'):.1f} MRR). Against BM25 over papers the Profiler's MRR differs by "
            f"{_signed(bm25)} (p = {bm25['p']:.1g}); against BM25 that also reads the train contexts by "
            f"{_signed(contexts)} (p = {contexts['p']:.1g}).",
            f"- What public profiles cost: a gold paper nobody has cited yet ranks lower under eq. 3 (MRR "
            f"{uncited['profiler']:.1f}) than under content only ({uncited['content']:.1f}): profiles of cited papers "
            f"sound like contexts, its own does not. HYBRID gives {uncited['hybrid']:.1f}, the lexical profile alone "
            f"{uncited['lexical-profile']:.1f}.",
            f"- BM25 takes {times['bm25'] / times['profiler']:.1f} times the Profiler's CPU time. The paper's ratio of "
            "32 to 44 is against trained prefetchers that run a network over every query; no such rival runs here.\n",
        ]
    )


def _protocol(test: Figures) -> str:
    stated = "; ".join(f"{what} {count:,}" for what, count in test["counts"].items())
    note = ""
    if test["mode"] == "inductive-contemporary":
        note = " All citing papers are of one year: papers are disjoint from the queries', opinions contemporary."
    return f"Mode `{test['mode']}`. {stated}.{note}"


def _cell(value: Figures) -> str:
    return f"{value['mean']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"


def _signed(value: Figures) -> str:
    return f"{value['mean']:+.1f} [{value['low']:+.1f}, {value['high']:+.1f}]"


def _systems_table(systems: Figures) -> str:
    shown = ("MRR", "R@10", "R@50", "R@300", "NDCG@10")
    first = ("MRR", "R@10") if all("bracket" in row for row in systems.values()) else ()
    rows = [
        [
            NAMES[name],
            *(_cell(row["metrics"][metric]) for metric in shown),
            *(f"{row['bracket'][metric]:.1f}" for metric in first),
        ]
        for name, row in systems.items()
    ]
    return markdown_table(["system", *shown, *(f"{metric}, bracket" for metric in first)], rows)


def _all_metrics(systems: Figures) -> str:
    metrics = list(next(iter(systems.values()))["metrics"])
    rows = [[NAMES[name], *(f"{row['metrics'][m]['mean']:.1f}" for m in metrics)] for name, row in systems.items()]
    return markdown_table(["system", *metrics], rows)


def _differences_table(against: Sequence[Figures]) -> str:
    by_pair: dict[tuple[str, str], dict[str, Figures]] = {}
    for difference in against:
        by_pair.setdefault((difference["first"], difference["second"]), {})[difference["metric"]] = difference
    metrics = list(next(iter(by_pair.values())))
    rows = [
        [
            f"{NAMES[first]} − {NAMES[second]}",
            *(f"{_signed(row[metric])}, p = {row[metric]['p']:.1g}" for metric in metrics),
        ]
        for (first, second), row in by_pair.items()
    ]
    return markdown_table(["difference", *metrics], rows)


def _times(test: Figures) -> str:
    systems = test["systems"]
    queries = next(iter(systems.values()))["metrics"]["MRR"]["queries"]
    base = systems["profiler"]["cpu seconds"]
    rows = [
        [
            NAMES[name],
            f"{row['seconds']:.1f}",
            f"{row['cpu seconds']:.1f}",
            f"{1000 * row['cpu seconds'] / queries:.1f}",
            f"{row['cpu seconds'] / base:.1f}",
        ]
        for name, row in systems.items()
    ]
    table = markdown_table(["system", "wall s, whole split", "CPU s", "CPU ms a query", "CPU × Profiler"], rows)
    return (
        f"Scoring every candidate and ranking, all {queries:,} queries in one run, vectors given. The Profiler is one "
        "matrix product over all profiles for each block of queries; query by query (plain brute force) it takes "
        f"{test['one by one']:.1f} CPU ms a query.\n\n" + table
    )


def _served(stated: Figures) -> str:
    return (
        f"The lab's profiles in a view of a running index service, {stated['queries']:,} test queries, top "
        f"{stated['depth']}: {stated['identical']:,} rankings identical to the lab's, {stated['equivalent']:,} but for "
        f"papers whose cosines are equal in float32; {stated['milliseconds']:.1f} ms a search. One request sent "
        f"{stated['repeats']} times more: {stated['repeated']} answers identical to the first, scores included (P7)."
    )


def _breakdown_table(breakdown: Figures) -> str:
    systems: Figures = breakdown["systems"]
    groups = [(group, count) for group, count, _ in next(iter(systems.values()))]
    rows = [
        [
            f"{group} ({count:,})",
            *(" / ".join(f"{value:.1f}" for value in systems[name][at][2].values()) for name in systems),
        ]
        for at, (group, count) in enumerate(groups)
    ]
    return markdown_table([breakdown["title"], *(NAMES[name] for name in systems)], rows)


def _mentions(name: str, stated: Figures) -> str:
    shares, hits = stated["shares"], stated["hits"]
    labels = list(hits)
    share_rows = [
        [band, f"{row['queries']:,}", *(f"{row[label]:.1f}" for label in labels)] for band, row in shares.items()
    ]
    hit_rows = [
        [NAMES[system], *(f"{hits[label][system]['R@10']:.1f}" for label in labels)] for system in hits[labels[0]]
    ]
    gains = {
        label: shares["all"][label] / 100 * (hits[label]["bm25-contexts"]["R@10"] - hits[label]["bm25"]["R@10"])
        for label in labels
    }
    gained = ", ".join(f"{gain:+.1f} from *{label}*" for label, gain in gains.items())
    return "\n".join(
        [
            "People cite by a name (an acronym, a method, a data set), and not always by one that stands in the title "
            "or abstract: others' contexts hold it too. Share of test contexts by where a name near the marker is "
            "found, in %, by in-degree of the gold paper:\n",
            markdown_table(["in-degree", "queries", *labels], share_rows),
            "\nR@10 within each group, %:\n",
            markdown_table(["system", *labels], hit_rows),
            f"\nWhat citing contexts add to BM25, {sum(gains.values()):+.1f} points of R@10 in all, comes to {gained}. "
            "A name that only other contexts hold is the clearest case, and grows common with in-degree; but much of "
            "the gain has no name in it: people who cite a paper say the same thing in the same words. The lexical "
            "profile adds where the words stand: those near the marker tell which of the passage's claims it is for.",
        ]
    )


def _fairness(name: str, stated: Figures, out: Path) -> str:
    parts = [
        "Share of the top 10 by in-degree decile of the cited papers (known citations only) and by year, against the "
        "share of the gold citations, in %.\n"
    ]
    for kind, title in (("in-degree", "in-degree"), ("year", "year of the paper")):
        shares = stated[kind]
        systems = list(shares[0]["recommended"])
        rows = [
            [share["group"], f"{share['gold']:.1f}", *(f"{share['recommended'][s]:.1f}" for s in systems)]
            for share in shares
        ]
        parts += [markdown_table([title, "gold", *(NAMES[s] for s in systems)], rows), ""]
        series = {"gold citations": [share["gold"] for share in shares]}
        series |= {NAMES[s]: [share["recommended"][s] for share in shares] for s in ("content", "profiler", "hybrid")}
        groups = [share["group"] for share in shares]
        pictures.bars(groups, series, "share, %", f"{name}: top 10 by {title}", out / f"fairness-{name}-{kind}")
        parts += [f"![Top 10 by {title}](fairness-{name}-{kind}.svg)\n"]
    return "\n".join(parts)


def _commit() -> str:
    described = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


if __name__ == "__main__":
    typer.run(report)
