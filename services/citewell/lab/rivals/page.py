"""The page of one data set: where rivals win, the papers' tables, pictures, and how everything was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.lab import pictures
from citewell.lab.bench_report import environment, markdown_table
from citewell.lab.breakdowns import breakdowns
from citewell.lab.metrics import RECALL_CUTOFFS, Difference, compare
from citewell.lab.reference_lists import global_difference
from citewell.lab.rivals.measuring import DAVINCI, OURS, Bench
from citewell.lab.rivals.report import Rows
from citewell.lab.rivals.rows import Row
from citewell.lab.rivals.tables import Head, Lines, head_title
from citewell.lab.rivals.timing import TIMED

_PLAIN = ("bm25", "bm25-contexts", "content")
"""Measured by us, but nobody's system of ours."""
_BROKEN_DOWN = ("in-degree of the gold paper", "age of the gold paper, years")
_SEED = 2026
Ranks = NDArray[np.int64]


def page(
    bench: Bench,
    rows: Rows,
    tables: Mapping[str, tuple[Head, Lines]],
    lacking: Mapping[str, Sequence[str]],
    command: str,
) -> str:
    """Everything but the pictures, which `draw` makes."""
    name = bench.experiment.data.name
    every = (*rows.retrieved.values(), *rows.reranked.values(), *rows.lists.values())
    commits = ", ".join(sorted({str(row.about["commit"]) for row in every}))
    parts = [
        f"# Rivals on {name}\n",
        "What the rivals are, how long each was trained, and what was assumed: [rivals](rivals.md).\n",
        "## Where a rival wins\n",
        wins(bench, rows.retrieved),
        *_part("\n## Rerankers on the same candidates\n", same_candidates(bench, rows.reranked)),
        *_part("\n## DAVINCI and its ablations on the same candidates\n", against_heads(bench, rows.heads)),
        *_part("\n## Whole reference lists\n", against_global(rows.lists)),
        "\n## How it was measured\n",
        f"Command: `{command}`; commit {commits}. {environment(('torch', 'numpy', 'scipy', 'bm25s', 'openvino'))}\n",
        f"{len(bench.asked):,} queries of the {bench.experiment.task.split} split (sample of seed {bench.seed}), mode "
        f"`{bench.experiment.task.mode.value}`. Times are CPU milliseconds of all threads for one query, the median "
        f"of {TIMED} asked one by one, on a shared machine. Retrieval ranks all papers, and holds the time of ENC1 "
        "where a system needs it; rivals encode their query in it. A reranker's time is that of one list; lists "
        "without the cited paper are not scored. Training is CPU minutes of steps, minings "
        "and validations, without reading the data and learning word vectors; DAVINCI's is not "
        "in that column.\n",
    ]
    for title in dict.fromkeys((*tables, *lacking)):
        head, lines = tables.get(title, ((), []))
        said = lacking.get(title, ())
        if lines or said:
            parts += [f"## {title}\n", *([markdown_table(head, lines), ""] * bool(lines))]
            parts += [f"{line}\n" for line in said]
    parts += ["## Pictures\n"]
    parts += [f"![{what}](rivals-{name}-{stem}.svg)\n" for stem, what in PICTURES.items()]
    return "\n".join(parts) + "\n"


def _part(heading: str, text: str) -> list[str]:
    return [heading, text] if text else []


def same_candidates(bench: Bench, rows: Mapping[str, Row]) -> str:
    """DAVINCI against each other reranker on the same candidates, in points, where both were measured."""
    lines = []
    for name, row in rows.items():
        retriever, _, reranker = name.partition(">")
        ours = rows.get(f"{retriever}>{DAVINCI}")
        if reranker == DAVINCI or ours is None:
            continue
        ranks, told = _ranks(ours), _ahead(bench, _ranks(ours), _ranks(row))
        times = f"{ours.measured.rerank_ms:.0f} CPU ms a list against {row.measured.rerank_ms:.0f}"
        lines.append(f"- **{ours.title}** against **{row.title}** ({len(ranks)} queries): {told}; {times}.")
    return "\n".join(lines)


def against_heads(bench: Bench, row: Row | None) -> str:
    """DAVINCI's head against each other head of the same run, in points."""
    ranks = (
        {name.removeprefix("rank:"): found.astype(np.int64) for name, found in row.measured.values.items()}
        if row
        else {}
    )
    if DAVINCI not in ranks:
        return ""
    ours, lines = ranks.pop(DAVINCI), []
    for name, theirs in ranks.items():
        told = _ahead(bench, ours, theirs)
        lines.append(f"- **{head_title(DAVINCI)}** against **{head_title(name)}** ({len(ours)} queries): {told}.")
    return "\n".join(lines)


def _ahead(bench: Bench, ours: Ranks, theirs: Ranks) -> str:
    """How far our ranks of the first queries are ahead of others, with intervals."""
    told = []
    for metric in ("MRR", "R@10"):
        found = compare(metric, ours, theirs, np.random.default_rng(_SEED), bench.clusters[: len(ours)])
        told.append(f"{metric} {found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]")
    return ", ".join(told)


def against_global(rows: Mapping[str, Row]) -> str:
    """Our GLOBAL against each other system, in points."""
    if "global" not in rows:
        return ""
    ours, lines = rows["global"], []
    for name, row in rows.items():
        if name == "global":
            continue
        found = global_difference(ours.measured.values, row.measured.values, _SEED)
        told = [
            f"{metric} {one['mean']:+.1f} [{one['low']:+.1f}, {one['high']:+.1f}]"
            for metric, one in ((metric, found[metric]) for metric in ("F1@20", "MRR"))
        ]
        times = f"{ours.measured.retrieval_ms:.1f} CPU ms a draft against {row.measured.retrieval_ms:.1f}"
        lines.append(f"- **{ours.title}** against **{row.title}**: {', '.join(told)}; {times}.")
    return "\n".join(lines)


PICTURES = {
    "pareto": "MRR against time",
    "recall": "R@k over k",
    "in-degree": "MRR by in-degree of the cited paper",
    "age": "MRR by age of the cited paper",
}


def wins(bench: Bench, rows: Mapping[str, Row]) -> str:
    """Which rivals are cheaper; and on MRR, R@10 and R@300 which of our systems each beats, or by how much it falls
    short."""
    ours = [name for name in OURS if name in rows and name not in _PLAIN]
    lines = []
    for name, row in rows.items():
        if name in OURS and name not in _PLAIN:
            continue
        beaten, level, short = [], [], []
        for own in ours:
            for metric in ("MRR", "R@10", "R@300"):
                found = compare(metric, _ranks(row), _ranks(rows[own]), np.random.default_rng(_SEED), bench.clusters)
                told = f"{metric} {found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}] against {rows[own].title}"
                if found.p < 0.05 and found.mean > 0:
                    beaten.append(told)
                elif found.p >= 0.05:
                    level.append(told)
                elif metric == "MRR":
                    short.append(told)
            new = compare_new(bench, row, rows[own])
            if new and new.p < 0.05 and new.mean > 0:
                told = f"MRR of papers that no train paper cites {new.mean:+.1f} [{new.low:+.1f}, {new.high:+.1f}]"
                beaten.append(f"{told} against {rows[own].title}")
        said = [f"wins {'; '.join(beaten)}"] * bool(beaten)
        said += [f"is not told apart in {'; '.join(level)}"] * bool(level)
        said += [f"falls short in {'; '.join(short)}"] * bool(short)
        lines.append((bool(beaten), f"- **{row.title}** {'. It '.join(said)}."))
    winners = [text for won, text in lines if won]
    rest = [text for won, text in lines if not won]
    winners = winners or ["No rival wins against one of our systems in MRR, R@10 or R@300, nor on new papers."]
    return "\n".join([*_cheaper(rows), *winners, "", "The others, in points:\n", *rest])


def compare_new(bench: Bench, one: Row, other: Row) -> Difference | None:
    """The difference in MRR on queries whose cited paper no known context cites, None where there is none."""
    data, known = bench.experiment.data, bench.experiment.known
    cited = np.bincount(known.cited, minlength=len(data.papers))
    new = cited[data.contexts.cited[bench.asked]] == 0
    if not new.any():
        return None
    rng = np.random.default_rng(_SEED)
    return compare("MRR", _ranks(one)[new], _ranks(other)[new], rng, bench.clusters[new])


def _cheaper(rows: Mapping[str, Row]) -> list[str]:
    """The rivals that take less than half of the Profiler's time."""
    if "profiler" not in rows:
        return []
    ours = rows["profiler"].measured.retrieval_ms
    found = []
    for name, row in rows.items():
        ms = row.measured.retrieval_ms
        if (name not in OURS or name in _PLAIN) and ms < ours / 2:
            told = f"{ms:.1f} CPU ms a query against {ours:.1f} of the Profiler"
            found.append(f"- **{row.title}** wins in time: {told}.")
    return [*found, ""] if found else []


def draw(bench: Bench, retrieved: Mapping[str, Row], reranked: Mapping[str, Row], out: Path) -> None:
    """The pictures of `PICTURES`."""
    name = bench.experiment.data.name
    # All points of the first picture are of the same queries: those that were reranked, if any were.
    asked = min(len(_ranks(row)) for row in (*retrieved.values(), *reranked.values()))
    points = {
        row.title: (max(row.measured.retrieval_ms, 0.1), row.first(asked).mean("MRR")) for row in retrieved.values()
    }
    points |= {
        row.title: (row.measured.retrieval_ms + row.measured.rerank_ms, row.mean("MRR")) for row in reranked.values()
    }
    pictures.pareto(points, f"{name}: MRR of {asked:,} queries against time", out / f"rivals-{name}-pareto")
    cutoffs = [1, *RECALL_CUTOFFS]
    curves = {row.title: (cutoffs, [row.mean(f"R@{k}") for k in cutoffs]) for row in retrieved.values()}
    pictures.recall_curves(curves, f"{name}: recall", out / f"rivals-{name}-recall")
    found = {each.title: each for each in breakdowns(bench.experiment.data, bench.experiment.known, bench.asked)}
    for title, stem in zip(_BROKEN_DOWN, ("in-degree", "age"), strict=True):
        groups = [group for group, _, _ in found[title].rows(_ranks(next(iter(retrieved.values()))))]
        series = {
            row.title: [figures["MRR"] for _, _, figures in found[title].rows(_ranks(row))]
            for row in retrieved.values()
        }
        pictures.bars(groups, series, "MRR, %", f"{name}: by {title}", out / f"rivals-{name}-{stem}")


def _ranks(row: Row) -> Ranks:
    return row.measured.values["rank"].astype(np.int64)
