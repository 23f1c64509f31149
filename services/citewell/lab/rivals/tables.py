"""The tables of the four papers in their layout: columns, rows, and the published figures for orientation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from citewell.lab.ilciter import CONDITIONAL, METHODS, OKAPI, PLUS
from citewell.lab.metrics import per_query
from citewell.lab.reference_lists import f1
from citewell.lab.rivals.rows import Row

PUBLISHED_ON = {"acl": "ACL-200"}
"""Whose published figures stand beside a set. Beside the others stands FullTextPeerRead, which is machine learning."""
OTHERWISE = "FullTextPeerRead"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a paper."""

    title: str
    metrics: tuple[str, ...]
    rows: tuple[str, ...]
    """Names of rows, in order; those that were not measured are left out."""
    published: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """Data set → row → the first metrics, in %, as printed."""
    shown: int = 2
    """How many of the metrics the published column repeats."""


RETRIEVED = Table(
    "profiler-davinci, Table 2: retrieval",
    ("MRR", "R@10", "R@50", "R@300", "NDCG@10", "NDCG@50", "NDCG@300"),
    ("hatten", "hatten+references", "hatten+cocited", "profiler", "lexical-profile", "hybrid", "second-phase"),
    {
        "ACL-200": {
            "hatten": (21.14, 40.33, 65.37, 86.98),
            "hatten+references": (21.16, 40.33, 65.37, 88.93),
            "profiler": (30.17, 53.79, 74.63, 89.58),
        },
        "FullTextPeerRead": {
            "hatten": (21.73, 39.17, 63.43, 87.16),
            "hatten+references": (21.76, 39.17, 63.43, 88.40),
            "profiler": (31.62, 57.23, 82.05, 96.27),
        },
    },
    shown=4,
)
END_TO_END = Table(
    "profiler-davinci, Table 3: end to end",
    ("MRR", "R@5", "R@10", "R@20", "NDCG@5", "NDCG@10", "NDCG@20"),
    (
        "bm25",
        "dense",
        "scincl",
        "hatten>scibert-reranker",
        "hatten+references>scibert-reranker",
        "profiler>davinci",
        "hybrid>davinci",
        "second-phase>davinci",
    ),
    {
        "ACL-200": {
            "bm25": (10.53, 15.45, 20.82),
            "scincl": (15.41, 21.39, 30.04),
            "hatten>scibert-reranker": (45.53, 58.93, 68.24),
            "hatten+references>scibert-reranker": (46.98, 60.20, 69.47),
            "profiler>davinci": (50.31, 64.10, 73.08),
        },
        "FullTextPeerRead": {
            "bm25": (16.60, 24.50, 31.15),
            "scincl": (17.80, 25.31, 35.43),
            "hatten>scibert-reranker": (55.03, 68.60, 75.58),
            "hatten+references>scibert-reranker": (56.63, 69.94, 76.92),
            "profiler>davinci": (59.68, 74.41, 82.17),
        },
    },
    shown=3,
)
ON_THE_SAME = Table(
    "profiler-davinci, Table 5: DAVINCI and other rerankers on the same candidates",
    END_TO_END.metrics,
    ("hybrid", "hybrid>davinci", "hybrid>scibert-reranker", "profiler>davinci", "hatten>davinci"),
    {
        "ACL-200": {"profiler>davinci": (50.31, 64.10, 73.08)},
        "FullTextPeerRead": {"profiler>davinci": (59.68, 74.41, 82.17)},
    },
    shown=3,
)
PREFETCHED = Table(
    "hatten-scibert, Table 2: prefetching",
    ("MRR", "R@10", "R@100", "R@200", "R@500", "R@1000", "R@2000"),
    ("bm25", "bm25-contexts", "dense", "scincl", "content", "hatten", "profiler", "hybrid", "second-phase"),
    {
        "ACL-200": {"bm25": (13.8, 26.3, 52.0, 60.4), "hatten": (14.8, 28.1, 60.3, 70.0)},
        "FullTextPeerRead": {"bm25": (18.5, 32.8, 60.9, 69.4), "hatten": (16.7, 30.6, 64.9, 75.0)},
    },
    shown=3,
)
RETRIEVAL_TABLES = (RETRIEVED, PREFETCHED)
RERANKING_TABLES = (END_TO_END, ON_THE_SAME)
PIPELINES_PUBLISHED = {
    "ACL-200": {"bm25": (45.7, 50.1, 54.9, 57.7), "hatten": (51.3, 56.0, 59.9, 61.9)},
    "FullTextPeerRead": {"bm25": (52.7, 57.8, 63.9, 68.0), "hatten": (58.6, 65.1, 71.3, 73.9)},
}
"""hatten-scibert, Table 4: R@10 of the reranked list by the number of reranked candidates, 100 to 1000."""
DEPTHS_PUBLISHED = {
    "ACL-200": {50: 46.97, 100: 48.92, 300: 50.31, 1000: 50.92},
    "FullTextPeerRead": {50: 55.03, 100: 57.69, 300: 59.68, 1000: 60.20},
}
"""profiler-davinci, Table 6: MRR of DAVINCI by k."""
ABLATIONS = "profiler-davinci, Table 4: ablations of DAVINCI"
ABLATIONS_METRICS = ("MRR", "R@5", "R@10", "R@20", "NDCG@10")
ABLATIONS_PUBLISHED = {
    "ACL-200": {"davinci": 50.31, "a1": 48.42, "a2": 48.30, "a3": 49.46, "a4": 45.16},
    "FullTextPeerRead": {"davinci": 59.68, "a1": 58.08, "a2": 58.20, "a3": 58.49, "a4": 53.58},
}
"""MRR of each head."""
ABLATIONS_TITLES = {
    "davinci": "DAVINCI",
    "a1": "A1: no prior",
    "a2": "A2: raw retrieval score",
    "a3": "A3: softmax of the list's scores",
    "a4": "A4: scalar gate",
    "cross-encoder": "cross-encoder, one linear layer",
}
EVIDENCE = {
    "ilciter, Table 4: lexical rankings and conditional ensembling": (OKAPI, PLUS, CONDITIONAL),
    "ilciter, Table 5: embeddings, naive ensembles and conditional ensembling": (
        *(name for name in METHODS if name not in (OKAPI, PLUS, CONDITIONAL)),
        CONDITIONAL,
    ),
}
EVIDENCE_METRICS = ("MRR", "R@1", "R@3", "R@5", "R@10")
EVIDENCE_PUBLISHED = {CONDITIONAL: "35.2 to 44.5 / 51.4 to 62.8", "embeddings only": "26.3 to 38.6 / 42.8 to 56.0"}
"""MRR / R@10 on ILCiteR's three sets: named entities, summarisation, translation."""

Head = tuple[str, ...]
Lines = list[list[str]]


def published_set(data_name: str) -> str:
    """The data set of the papers that stands beside one of ours."""
    return PUBLISHED_ON.get(data_name, OTHERWISE)


def lay_out(table: Table, rows: Mapping[str, Row], data_name: str) -> tuple[Head, Lines]:
    """The table's heading and lines; rivals and ours in one."""
    beside = published_set(data_name)
    head = (
        "system",
        *table.metrics,
        "retrieval ms",
        "rerank ms",
        "training CPU min",
        f"published, {beside}: {', '.join(table.metrics[: table.shown])}",
    )
    lines = []
    for name in table.rows:
        if name in rows:
            row = rows[name]
            printed = table.published.get(beside, {}).get(name, ())
            lines.append(
                [
                    row.title,
                    *(f"{row.mean(metric):.1f}" for metric in table.metrics),
                    f"{row.measured.retrieval_ms:.1f}",
                    f"{row.measured.rerank_ms:.0f}" if row.measured.rerank_ms else "—",
                    f"{row.train_minutes:.1f}" if row.train_minutes else "—",
                    " / ".join(f"{value:.1f}" for value in printed[: table.shown]) or "—",
                ]
            )
    return head, lines


def by_depth(
    rows: Mapping[str, Row], metric: str, published: Callable[[str], Mapping[int, float]], depths: Sequence[int]
) -> tuple[Head, Lines]:
    """A metric of reranked lists by the number of candidates that were reranked, and the printed figures."""
    lines = []
    for name, row in rows.items():
        cells = []
        for depth in depths:
            ranks = row.measured.values.get(f"rank@{depth}")
            cells.append("—" if ranks is None else f"{100 * float(_per_query(metric, ranks).mean()):.1f}")
        printed = [f"{value:.1f} ({depth})" for depth, value in published(name).items()]
        lines.append([row.title, *cells, " / ".join(printed) or "—"])
    return ("system", *(f"{metric}, k = {depth}" for depth in depths), "published (k)"), lines


def ablations_table(row: Row, data_name: str) -> tuple[Head, Lines]:
    """Every head of one DAVINCI run on the same candidates."""
    beside = published_set(data_name)
    lines = []
    for name, ranks in row.measured.values.items():
        head = name.removeprefix("rank:")
        cells = [f"{100 * float(_per_query(metric, ranks).mean()):.1f}" for metric in ABLATIONS_METRICS]
        printed = ABLATIONS_PUBLISHED[beside].get(_variant(head))
        lines.append([head_title(head), *cells, f"{printed:.1f}" if printed else "—"])
    return ("head", *ABLATIONS_METRICS, f"published, {beside}: MRR"), lines


def head_title(head: str) -> str:
    """What a head of a DAVINCI run is called."""
    variant = _variant(head)
    return head.replace(variant, ABLATIONS_TITLES.get(variant, variant), 1)


def _variant(head: str) -> str:
    return head.partition("+")[0]  # a head may name its loss


def evidence_tables(row: Row) -> dict[str, tuple[Head, Lines]]:
    """ILCiteR's Tables 4 and 5."""
    head: Head = ("method", *EVIDENCE_METRICS, "published: MRR / R@10")
    laid = {}
    for title, methods in EVIDENCE.items():
        lines = []
        for method in methods:
            ranks = row.measured.values[f"rank:{method}"]
            cells = [f"{100 * float(_per_query(metric, ranks).mean()):.1f}" for metric in EVIDENCE_METRICS]
            lines.append([method, *cells, EVIDENCE_PUBLISHED.get(method, "—")])
        laid[title] = (head, lines)
    return laid


WHOLE_LISTS = "citeomatic, Table 2: whole reference lists"
WHOLE_LISTS_RIVALS = ("nnselect", "citeomatic")
WHOLE_LISTS_PUBLISHED = {
    "bm25": "11.9 / 42.5, 20.9 / 57.4, 5.8 / 21.8",
    "nnselect": "28.2 / 57.9, 30.9 / 69.9, 10.9 / 22.1",
    "citeomatic": "30.2 / 67.2, 32.5 / 75.4, 12.6 / 33.0",
    "citeomatic-metadata": "30.3 / 68.9, 32.9 / 77.1, 12.5 / 33.0",
}
"""F1@20 / MRR on DBLP, PubMed and OpenCorpus."""


def whole_lists_table(rows: Mapping[str, Row]) -> tuple[Head, Lines]:
    """Citeomatic's Table 2 with precision, recall and times."""
    head = ("system", "F1@20", "MRR", "P@20", "R@20", "retrieval ms", "training CPU min", "published: F1@20 / MRR")
    lines = []
    for name, row in rows.items():
        means = {metric: row.mean(metric) for metric in ("P@20", "R@20", "MRR")}
        figures = (f1(means), means["MRR"], means["P@20"], means["R@20"], row.measured.retrieval_ms)
        trained = f"{row.train_minutes:.1f}" if row.train_minutes else "—"
        printed = WHOLE_LISTS_PUBLISHED.get(name, "—")
        lines.append([row.title, *(f"{figure:.1f}" for figure in figures), trained, printed])
    return head, lines


def _per_query(metric: str, ranks: object) -> np.ndarray:
    return per_query(metric, np.asarray(ranks).astype(np.int64))
