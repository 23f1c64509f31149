"""The evaluation protocol and its checks: candidates, knowledge and queries.

    make_task ──▶ Task ──▶ verify_task      before a system sees it, and again on every run
                   └─▶ rankings ──▶ verify_rankings     on everything a system returned

A `Leak` names the broken rule; a run that raises one reports nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.corpora.readers import SPLITS
from citewell.lab.dataset import Column, Dataset, Rows

Mask = NDArray[np.bool_]


class Mode(StrEnum):
    """The protocols that a run may follow."""

    INDUCTIVE = "inductive"
    """Evaluated papers are no candidates, candidates are strictly older than the query, and so are all citing papers
    that shape profiles."""
    INDUCTIVE_CONTEMPORARY = "inductive-contemporary"
    """The same, but citing papers may be as recent as the query paper. Evaluated papers stay no candidates."""
    TRANSDUCTIVE = "transductive"
    """All papers are candidates whatever their dates; only for comparison with older publications."""


class Leak(AssertionError):
    """A rule of the protocol is broken: figures of this run would be invalid."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The candidates, the knowledge and the queries of an evaluation."""

    mode: Mode
    split: str
    candidates: Mask
    """Which papers may be recommended at all; each query's dates restrict them further."""
    knowledge: Rows
    """The contexts used for profiles, lexical statistics and evidence: those of train papers only."""
    queries: Rows
    """The contexts under evaluation."""
    left_out: dict[str, int]
    """The number of contexts of the split that are not used as queries, by reason."""

    def eligible(self, data: Dataset, queries: Rows) -> Iterator[Mask]:
        """For each query (row of the contexts): which papers may be recommended."""
        by_day: dict[int, Mask] = {}
        for citing, day in zip(data.contexts.citing[queries], data.contexts.first_day[queries].tolist(), strict=True):
            if self.mode is Mode.TRANSDUCTIVE:
                allowed = self.candidates.copy()
                allowed[citing] = False
                yield allowed
                continue
            if day not in by_day:
                by_day[day] = self.candidates & older_than(data.papers.last_day, day)
            yield by_day[day]


def older_than(last_day: Column, first_day: int) -> Mask:
    """Whether each paper certainly appeared before a day; False if its date is unknown."""
    return (last_day > 0) & (last_day < first_day)


def make_task(data: Dataset, split: str, mode: Mode) -> Task:
    """The verified task of evaluating one split."""
    rows = data.contexts.of_split(split)
    if mode is Mode.TRANSDUCTIVE:
        task = Task(mode, split, np.ones(len(data.papers), np.bool_), data.contexts.of_split("train"), rows, {})
    else:
        task = _dated_task(data, split, mode, rows, data.split_papers[split])
    if not len(task.queries):
        hint = "" if data.papers.year.any() else f"; no paper has a date, so only {Mode.TRANSDUCTIVE.value} is possible"
        raise ValueError(f"none of the {len(rows)} {split} contexts can be asked in mode {mode.value}{hint}")
    verify_task(data, task)
    return task


def training_task(data: Dataset, mode: Mode, queries: Rows | None = None) -> Task:
    """Train contexts as queries, for training a reranker; systems leave a query paper's own citations out.

    A train paper may be recommended to other train papers, as a validation paper may at test time: dates decide. No
    evaluated paper is a candidate.
    """
    rows = data.contexts.of_split("train") if queries is None else queries
    evaluated = np.union1d(data.split_papers["validation"], data.split_papers["test"])
    return _dated_task(data, "train", mode, rows, evaluated)


def _dated_task(data: Dataset, split: str, mode: Mode, rows: Rows, barred: Rows) -> Task:
    """The task for some contexts, without those whose cited paper is barred or not older."""
    contexts, papers = data.contexts, data.papers
    candidates = np.ones(len(papers), np.bool_)
    candidates[barred] = False
    gold = contexts.cited[rows]
    older = (papers.last_day[gold] > 0) & (papers.last_day[gold] < contexts.first_day[rows])
    left_out = {
        "cites a paper that is not older": int(np.count_nonzero(~older)),
        "cites a paper under evaluation": int(np.count_nonzero(older & ~candidates[gold])),
    }
    return Task(mode, split, candidates, contexts.of_split("train"), rows[older & candidates[gold]], left_out)


def verify_task(data: Dataset, task: Task) -> None:
    """Raises Leak unless the task obeys its mode."""
    contexts, papers = data.contexts, data.papers
    _verify_splits(data)
    citing = contexts.citing[task.knowledge]
    if (outside := ~np.isin(citing, data.split_papers["train"])).any():
        paper = papers.ids[int(citing[outside][0])]
        raise Leak("train citations only", f"{paper!r} is no train paper, yet its citations are known")
    if (own := np.isin(contexts.citing[task.queries], citing)).any() and task.split != "train":
        paper = papers.ids[int(contexts.citing[task.queries][own][0])]
        raise Leak("no own citations", f"the citations of query paper {paper!r} are known")
    if task.mode is Mode.TRANSDUCTIVE:
        return
    if task.candidates[data.split_papers[task.split]].any() and task.split != "train":
        raise Leak("D_eval ∩ C = ∅", f"a paper of the {task.split} split is a candidate")
    gold = contexts.cited[task.queries]
    if not (task.candidates[gold] & (papers.last_day[gold] < contexts.first_day[task.queries])).all():
        raise Leak("answerable", "a query's cited paper is no candidate for it: it must be left out and counted")
    if task.mode is Mode.INDUCTIVE and len(task.knowledge) and len(task.queries) and task.split != "train":
        youngest, first = int(papers.last_day[citing].max()), int(contexts.first_day[task.queries].min())
        if youngest >= first or papers.last_day[citing].min() == 0:
            raise Leak(
                "date(known) < date(q)",
                f"a citing paper of {_day(youngest)} shapes what is known for a query of {_day(first)}; "
                f"if that is how the set is made, name the mode {Mode.INDUCTIVE_CONTEMPORARY.value}",
            )


def verify_rankings(data: Dataset, task: Task, ranked: NDArray[np.integer[Any]]) -> None:
    """Raises Leak if any returned paper (row of the papers; -1 pads) was not a candidate for its query."""
    contexts, papers = data.contexts, data.papers
    returned = ranked >= 0
    rows = np.where(returned, ranked, 0)
    if task.mode is Mode.TRANSDUCTIVE:
        if (returned & (rows == contexts.citing[task.queries][:, None])).any():
            raise Leak("no self-citation", "a query paper was recommended to itself")
        return
    if (returned & ~task.candidates[rows]).any():
        raise Leak("D_eval ∩ C = ∅", "a paper under evaluation was returned")
    if (returned & (papers.last_day[rows] >= contexts.first_day[task.queries][:, None])).any():
        raise Leak("date(d) < date(q)", "a returned paper is not older than its query")
    if (returned & (papers.last_day[rows] == 0)).any():
        raise Leak("date(d) < date(q)", "a returned paper has no known date")


def _day(ordinal: int) -> str:
    return datetime.date.fromordinal(ordinal).isoformat() if ordinal else "unknown date"


def _verify_splits(data: Dataset) -> None:
    for number, split in enumerate(SPLITS):
        for other in SPLITS[number + 1 :]:
            shared = np.intersect1d(data.split_papers[split], data.split_papers[other])
            if len(shared):
                paper = data.papers.ids[int(shared[0])]
                raise Leak("disjoint splits", f"citing paper {paper!r} is in {split} and in {other}")


def counts(data: Dataset, task: Task) -> dict[str, int]:
    """The figures a report prints: sizes of the splits, of the corpus, and of what was left out."""
    contexts = data.contexts
    stated = {f"{split} citing papers": len(data.split_papers[split]) for split in SPLITS}
    stated |= {f"{split} contexts": len(contexts.of_split(split)) for split in SPLITS}
    stated |= {"papers": len(data.papers), f"{task.split} contexts asked": len(task.queries)}
    stated |= {f"left out: {reason}": number for reason, number in task.left_out.items()}
    if task.mode is not Mode.TRANSDUCTIVE and len(task.queries):
        latest = int(contexts.first_day[task.queries].max())
        stated["candidates of the latest query"] = int(
            (task.candidates & older_than(data.papers.last_day, latest)).sum()
        )
    return stated
