"""Evaluates reranked lists as Markdown: Tables 3, 4 and 6, the gates, and one query in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.lab import metrics
from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Dataset
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.model import Variant
from citewell.lab.davinci.priors import DECAY
from citewell.lab.davinci.scoring import HeadScores
from citewell.lab.intervals import interval

RETRIEVAL = "retrieval order"
COLUMNS = ("MRR", "R@5", "R@10", "R@20", "NDCG@10")
"""The metrics of Table 3."""
_SEED = 2026


@dataclass(frozen=True, eq=False)
class Reranked:
    """Candidate lists of one sample of queries, and the scores of every head."""

    data: Dataset
    lists: CandidateLists
    scores: Mapping[str, HeadScores]

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Which candidates the query's whole bracket cites."""
        return self.lists.right(Brackets(self.data).answers)

    @property
    def clusters(self) -> NDArray[np.int32]:
        """The citing paper of each query: contexts of one paper are not independent."""
        return self.data.contexts.citing[self.lists.queries]

    def ranks(self, name: str, depth: int | None = None, *, bracket: bool = False) -> NDArray[np.int64]:
        """Rank of each cited paper by a head, or in retrieval order, among the first `depth`; 0 if it is not there.

        With `bracket` it is the rank of the first paper that the query's whole bracket cites.
        """
        lists = self.lists.cut(depth or self.lists.depth)
        right = self.right[:, : lists.depth] if bracket else None
        return lists.ranks(None if name == RETRIEVAL else self.scores[name].logit[:, : lists.depth], right)


def estimates(reranked: Reranked, names: Sequence[str], *, bracket: bool = False) -> list[dict[str, Any]]:
    """Every system's figures with 95 % intervals; with `bracket`, of the first right answer."""
    rows = []
    for name in names:
        ranks = reranked.ranks(name, bracket=bracket)
        for metric in COLUMNS:
            found = metrics.estimate(metric, ranks, np.random.default_rng(_SEED), reranked.clusters)
            figure = {"mean": found.mean, "low": found.low, "high": found.high, "queries": len(reranked.lists)}
            rows.append({"system": name, "answer": "bracket" if bracket else "cited", "metric": metric, **figure})
    return rows


def figures(reranked: Reranked, names: Sequence[str], *, bracket: bool = False, short: bool = False) -> str:
    """Table 3 and 4: the estimates; `short` writes an interval as ±, which a terminal of 80 columns holds."""
    cells: dict[str, list[str]] = {name: [] for name in names}
    for found in estimates(reranked, names, bracket=bracket):
        cells[found["system"]].append(interval(found, 2 - short, short=short))
    head = ["system, first of the bracket" if bracket else "system", *COLUMNS]
    return table(head, [[name, *of_name] for name, of_name in cells.items()])


def differences(reranked: Reranked, name: str, others: Sequence[str], metric: str = "MRR") -> str:
    """The differences between one system and others on the same queries."""
    rows = []
    for other in others:
        rng = np.random.default_rng(_SEED)
        found = metrics.compare(metric, reranked.ranks(name), reranked.ranks(other), rng, reranked.clusters)
        rows.append([other, f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]", f"{found.p:.2g}"])
    return table([f"{name} against", f"Δ {metric}, points", "p"], rows)


@dataclass(frozen=True, slots=True, eq=False)
class KeptRanks:
    """The ranks of one run on a sample, stored for comparison with another run."""

    queries: NDArray[np.int32]
    ranks: NDArray[np.int64]

    @classmethod
    def of(cls, reranked: Reranked, name: str) -> KeptRanks:
        """The ranks by one head."""
        return cls(reranked.lists.queries, reranked.ranks(name))

    def save(self, path: Path) -> None:
        """Writes an `.npz`."""
        with path.open("wb") as file:
            np.savez(file, queries=self.queries, ranks=self.ranks)

    @classmethod
    def load(cls, path: Path) -> KeptRanks:
        """Reads what `save` wrote."""
        with np.load(path) as stored:
            return cls(stored["queries"], stored["ranks"])


def against(reranked: Reranked, name: str, other: KeptRanks, label: str) -> str:
    """The difference between a head and the stored ranks of another run on the same queries, in points and per cent."""
    if not np.array_equal(reranked.lists.queries, other.queries):
        raise ValueError(f"{label} ranked other queries: compare runs on one sample")
    rows = []
    for metric in COLUMNS:
        rng = np.random.default_rng(_SEED)
        found = metrics.compare(metric, reranked.ranks(name), other.ranks, rng, reranked.clusters)
        base = metrics.means(other.ranks, [metric])[metric]
        gained = f"{100 * found.mean / base:+.1f} %" if base else "—"
        rows.append(
            [
                metric,
                f"{base:.2f}",
                f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]",
                gained,
                f"{found.p:.2g}",
            ]
        )
    return table([f"{name} against {label}", "there", "Δ, points", "relative", "p"], rows)


def depths(reranked: Reranked, names: Sequence[str], sweep: Sequence[int]) -> str:
    """Table 6: MRR when only the first k are reranked and returned."""
    rows = [
        [name, *(f"{metrics.means(reranked.ranks(name, depth), ['MRR'])['MRR']:.2f}" for depth in sweep)]
        for name in names
    ]
    return table(["MRR at k =", *map(str, sweep)], rows)


def gates(reranked: Reranked, name: str, edges: Sequence[int] = (1, 5, 20, 100)) -> str:
    """Mean gate on the text half and on the score half, by retrieval rank, and for cited papers."""
    scores, lists = reranked.scores[name], reranked.lists
    position = np.broadcast_to(np.arange(1, lists.depth + 1), lists.papers.shape)
    present = np.isfinite(scores.gate_text)
    groups = [("cited papers", present & (lists.papers == lists.gold[:, None]))]
    low = 0
    for high in edges:
        groups.append((f"rank {low + 1}–{high}", present & (position > low) & (position <= high)))
        low = high
    rows = [
        [label, f"{scores.gate_text[chosen].mean():.3f}", f"{scores.gate_score[chosen].mean():.3f}"]
        for label, chosen in groups
        if chosen.any()
    ]
    return table(["pairs", "gate on the text half", "gate on the score half"], rows)


def worked_example(reranked: Reranked, row: int, names: Sequence[str], shown: int = 10) -> str:
    """Like the paper's Table 7: one query, the top of several systems, and the first one's gates; ids only."""
    lists, ids = reranked.lists, reranked.data.papers.ids
    columns = []
    for name in names:
        order = (
            np.arange(lists.depth)
            if name == RETRIEVAL
            else np.argsort(-reranked.scores[name].logit[row], kind="stable")
        )
        columns.append(order[:shown])
    gated = next(name for name in names if name != RETRIEVAL)
    scores = reranked.scores[gated]
    rows = []
    for place in range(min(shown, lists.depth)):
        cells = []
        for name, order in zip(names, columns, strict=True):
            at = int(order[place])
            paper = int(lists.papers[row, at])
            label = f"**{ids[paper]}**" if paper == lists.gold[row] else ids[paper]
            cells.append(label if name == RETRIEVAL else f"{label} (was {at + 1})")
        at = int(columns[list(names).index(gated)][place])
        score = 1 / (1 + np.exp(-float(scores.logit[row, at])))
        prior, text, prior_gate = DECAY ** (at + 1), scores.gate_text[row, at], scores.gate_score[row, at]
        rows.append([str(place + 1), *cells, f"{score:.3f}", f"{prior:.3f}", f"{text:.3f}", f"{prior_gate:.3f}"])
    extra = [f"S of {gated}", "its prior", "text gate", "score gate"]
    return table(["#", *names, *extra], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def example_row(reranked: Reranked, name: str, top: int = 10) -> int | None:
    """The first query whose cited paper a head lifts into its top ten from outside of it."""
    lifted = (reranked.ranks(name) > 0) & (reranked.ranks(name) <= top) & (reranked.ranks(RETRIEVAL) > top)
    return int(np.argmax(lifted)) if lifted.any() else None


def report(reranked: Reranked, heads: Sequence[str], *, short: bool = False) -> str:
    """All tables of one sample; the first head is the model, the others its rivals. `short` is for a terminal."""
    lists = reranked.lists
    names = [RETRIEVAL, *heads]
    sweep = [depth for depth in (10, 20, 50, 100, 300, 1000) if depth <= lists.depth]
    parts = [
        f"{len(lists)} queries of {len(np.unique(reranked.clusters))} citing papers, k = {lists.depth}",
        figures(reranked, names, short=short),
        figures(reranked, names, bracket=True, short=short),
        differences(reranked, heads[0], [name for name in names if name != heads[0]]),
        depths(reranked, names, sweep),
        gates(reranked, heads[0]),
    ]
    if (row := example_row(reranked, heads[0])) is not None:
        shown = [name for name in (RETRIEVAL, heads[0], Variant.CROSS_ENCODER) if name in names]
        parts += [
            f"Context {lists.queries[row]}; the cited paper is set in bold.",
            worked_example(reranked, row, shown),
        ]
    return "\n\n".join(parts) + "\n"
