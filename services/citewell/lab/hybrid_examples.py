"""Train queries with HYBRID's candidates as negatives, for what learns a query's vector: query map and window encoder.

Profiles leave the citations of the query's own paper out, as everywhere in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import candidate_lists
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.sampling import sampled
from citewell.profiler.profiles import Vectors, normalised, profile

Ints = NDArray[np.int64]
RANDOM_LEXICAL = 0.03
"""The lexical score that a random paper is taken to have."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Train queries with their negatives. Papers are rows of `profiles`."""

    contexts: Vectors
    drafts: Vectors
    cited: Ints
    cited_lexical: Vectors
    candidates: Ints
    """[queries, depth]; -1 where there is none, and where a paper is a right answer."""
    lexical: Vectors
    profiles: Vectors
    """The profiles of all papers, then those without one citing paper's citations."""
    papers: int
    """How many of the profiles are those of all papers."""
    cited_papers: Ints
    """The cited papers among all papers; `cited` are their profiles that leave out the query's own paper."""

    def random_papers(self, rows: Ints, count: int, rng: np.random.Generator) -> tuple[Ints, NDArray[np.bool_]]:
        """Random papers, and for each of these queries which of them it cites: those are no negatives of it."""
        drawn: Ints = rng.integers(0, self.papers, count)
        return drawn, self.cited_papers[rows][:, None] == drawn

    def __len__(self) -> int:
        return len(self.cited)


def make_examples(
    train: Experiment, queries: int, depth: int, seed: int, on_progress: OnProgress, lists_file: Path | None = None
) -> Examples:
    """HYBRID's first `depth` candidates of some train queries, with profiles that leave each query's own paper out.

    The candidate lists, the costly part, are kept in `lists_file` and reused.
    """
    lists = train_lists(train, queries, depth, seed, on_progress, lists_file)
    contexts, vectors = train.data.contexts, train.vectors
    citing = contexts.citing[lists.queries]
    profiler = train.profiler
    profiles, place, base = [profiler.profiles], {}, len(profiler.profiles)
    for paper in np.unique(citing):
        cited, sums = train.table.without(int(paper))
        profiles.append(normalised(profile(vectors.papers[cited], sums, chosen.PROFILE)))
        place[int(paper)] = {int(each): base + at for at, each in enumerate(cited)}
        base += len(cited)
    stacked = np.concatenate(profiles)
    asked = profiler.query_vectors(lists.queries.astype(np.int64))
    candidates = np.full(lists.papers.shape, -1, np.int64)
    lexical = np.zeros(lists.papers.shape, np.float32)
    cited_rows, cited_lexical = np.zeros(len(lists), np.int64), np.zeros(len(lists), np.float32)
    right = lists.right(train.brackets.answers)
    for row in range(len(lists)):
        own = place[int(citing[row])]
        rows = np.array([own.get(int(paper), int(paper)) for paper in lists.papers[row]])
        cosine = stacked[rows] @ asked[row]
        lexical[row] = (lists.scores[row] - cosine) / chosen.LEXICAL
        candidates[row] = np.where(right[row] | (lists.papers[row] < 0), -1, rows)
        cited_rows[row] = own.get(int(lists.gold[row]), int(lists.gold[row]))
        cited_lexical[row] = (lists.gold_score[row] - stacked[cited_rows[row]] @ asked[row]) / chosen.LEXICAL
    return Examples(
        vectors.contexts[lists.queries],
        vectors.papers[citing],
        cited_rows,
        cited_lexical,
        candidates,
        lexical,
        stacked,
        len(profiler.profiles),
        lists.gold.astype(np.int64),
    )


def train_lists(
    train: Experiment, count: int, depth: int, seed: int, on_progress: OnProgress, file: Path | None
) -> CandidateLists:
    """HYBRID's first candidates of some train queries, kept in `file`."""
    if file and file.exists():
        return CandidateLists.load(file)
    queries: Rows = sampled(train.task.queries, count, seed)
    lists = candidate_lists(train.hybrid, train, queries, depth, on_progress)
    if file:
        unfinished = file.with_suffix(".part.npz")
        lists.save(unfinished)
        unfinished.replace(file)
    return lists
