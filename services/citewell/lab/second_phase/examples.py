"""Training examples of the second phase: standardised features of the candidates of train queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.index.second_phase import DEPTH
from citewell.lab.dataset import Dataset, Rows, TextColumn
from citewell.lab.experiment import Encoding, Experiment, OnProgress, vectors_of
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, training_task
from citewell.lab.retrieval import BLOCK, IdOrder
from citewell.lab.sampling import sampled
from citewell.lab.second_phase.system import FirstPhase, listed_features


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Queries with their candidates in the order of the first phase."""

    features: NDArray[np.float16]
    """[queries, DEPTH, features]; 0 beyond the end of a list."""
    listed: NDArray[np.bool_]
    """[queries, DEPTH]: false beyond the end of a list."""
    gold: NDArray[np.int64]
    """The cited paper's place; -1 where the first phase did not find it."""

    def answerable(self) -> Examples:
        """Those whose cited paper was found. If it were added to the other lists, its place would give it away."""
        found = self.gold >= 0
        return Examples(self.features[found], self.listed[found], self.gold[found])


def examples(
    experiment: Experiment, queries: Rows, names: Sequence[str], on_progress: OnProgress, what: str
) -> Examples:
    """The candidates of some queries of the experiment's task."""
    first = FirstPhase(experiment)
    # Block by block, so that the queries of one paper share the work of leaving that paper out.
    queries = queries[np.lexsort((queries, experiment.data.contexts.citing[queries]))]
    features = np.zeros((len(queries), DEPTH, len(names)), np.float16)
    listed = np.zeros((len(queries), DEPTH), np.bool_)
    gold = np.full(len(queries), -1, np.int64)
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        for row, one in enumerate(first.lists(block, *first.scores(block)), start=start):
            count = len(one.papers)
            if count:
                features[row, :count] = listed_features(one, first.mean_length, tuple(names))
                listed[row, :count] = True
                place = np.flatnonzero(one.papers == experiment.data.contexts.cited[queries[row]])
                gold[row] = place[0] if len(place) else -1
        on_progress(what, min(start + BLOCK, len(queries)), len(queries))
    return Examples(features, listed, gold)


@dataclass(frozen=True, slots=True)
class Sparse:
    """A poorer copy of a corpus: fewer papers, and some of them without abstract."""

    papers: float = 0.3
    """Share of the papers that stay candidates. A cited paper stays or goes like any other."""
    bare: float = 0.7
    """Share of papers that lose their abstract."""
    seed: int = 5


def sparse_experiment(
    data: Dataset, mode: Mode, encoding: Encoding, cache: Path, sparse: Sparse, on_progress: OnProgress
) -> Experiment:
    """The train queries of the poorer corpus, so that the model also learns what to do without abstracts."""
    rng = np.random.default_rng(sparse.seed)
    bare, kept = (rng.random(len(data.papers)) < share for share in (sparse.bare, sparse.papers))
    abstracts = TextColumn(
        "" if strip else abstract for strip, abstract in zip(bare & kept, data.papers.abstracts, strict=True)
    )
    data = replace(data, papers=replace(data.papers, abstracts=abstracts))
    task = training_task(data, mode)
    candidates = task.candidates & kept
    queries = task.queries[candidates[data.contexts.cited[task.queries]]]
    vectors = vectors_of(data, encoding, cache, on_progress)
    known = citations(data, task.knowledge)
    task = replace(task, candidates=candidates, queries=queries)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def drawn(experiment: Experiment, count: int, seed: int) -> Rows:
    """A sample of the task's queries that may be learned from; 0 = all."""
    queries = experiment.to_learn_from
    return sampled(queries, count or len(queries), seed)
