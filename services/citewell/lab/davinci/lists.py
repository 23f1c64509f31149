"""Candidate lists of queries, for training and evaluating a reranker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.lab.davinci.priors import DECAY, Floats, prior_columns

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateLists:
    """The top k of each query, best first, and the rank of the cited paper."""

    queries: Ints
    """Rows of the contexts."""
    papers: Ints
    """`[queries, k]`, rows of the papers; -1 where a list is shorter."""
    scores: Floats
    """`[queries, k]`, the scores of the retriever."""
    gold: Ints
    """The cited paper of each query."""
    gold_score: Floats
    """Its retrieval score, whether it is in the list or not."""

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def depth(self) -> int:
        """k, the length of the longest list."""
        return int(self.papers.shape[1])

    @property
    def gold_position(self) -> Ints:
        """Where in its list each cited paper is, counted from 0; k where it is absent."""
        found = self.papers == self.gold[:, None]
        return np.where(found.any(axis=1), found.argmax(axis=1), self.depth).astype(np.int32)

    def ranks(self, order: Floats | None = None, right: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Rank of each cited paper in retrieval order, or when reordered by higher `order`; 0 where it is absent.

        With `right`, `[queries, k]`, it is the rank of the first paper that is marked there. Equal values keep the
        retrieval order.
        """
        right = self.papers == self.gold[:, None] if right is None else right
        if order is not None:
            best = np.where(right, order, -np.inf).max(axis=1)
            right = right & (order == best[:, None])
        position = np.where(right.any(axis=1), right.argmax(axis=1), self.depth).astype(np.int32)
        if order is None:
            return np.where(position < self.depth, position + 1, 0).astype(np.int64)
        order = np.where(self.papers >= 0, order, -np.inf)
        rows = np.arange(len(self))
        inside = position < self.depth
        own = order[rows, np.minimum(position, self.depth - 1)][:, None]
        earlier = np.arange(self.depth)[None, :] < position[:, None]
        ahead = ((order > own) | ((order == own) & earlier)).sum(axis=1)
        return np.where(inside, ahead + 1, 0).astype(np.int64)

    def right(self, answers: Callable[[int], Ints]) -> NDArray[np.bool_]:
        """`[queries, k]`, true where a paper is among the `answers` of the query's row."""
        rows = zip(self.queries, self.papers, strict=True)
        return np.array([np.isin(papers, answers(int(query))) for query, papers in rows], np.bool_)

    def cut(self, depth: int) -> CandidateLists:
        """The same queries with shorter lists."""
        return CandidateLists(self.queries, self.papers[:, :depth], self.scores[:, :depth], self.gold, self.gold_score)

    def take(self, rows: NDArray[np.integer]) -> CandidateLists:
        """Some of the queries, in the order asked."""
        return CandidateLists(
            self.queries[rows], self.papers[rows], self.scores[rows], self.gold[rows], self.gold_score[rows]
        )

    def priors(self, row: int, papers: Ints, decay: float = DECAY) -> Floats:
        """`[papers, kinds]` for papers of one query's list; a cited paper that is absent has rank k + 1 (eq. 6)."""
        position_of = {int(paper): at for at, paper in enumerate(self.papers[row])}
        at = np.array([position_of.get(int(paper), self.depth) for paper in papers], np.int64)
        inside = at < self.depth
        scores = np.where(inside, self.scores[row][np.minimum(at, self.depth - 1)], self.gold_score[row])
        return prior_columns(at + 1, scores.astype(np.float32), self.scores[row][self.papers[row] >= 0], decay)

    def save(self, path: Path) -> None:
        """Writes the lists to an `.npz`."""
        np.savez(path, **{name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def load(cls, path: Path) -> CandidateLists:
        """Reads what `save` wrote."""
        with np.load(path) as stored:
            return cls(**{name: stored[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class NegativeSampling:
    """How the negatives of a positive are drawn from its list."""

    count: int = 4
    """n of eq. 11."""
    hard_share: float = 0.0
    """Share drawn from the head of the list; the rest comes from the whole list. Heads that read a prior then learn
    that the head of a list is worse than it is: eq. 11 draws evenly, and so does the default."""
    hard_depth: int = 20
    """How far the head of the list reaches."""

    easy_share: float = 0.0
    """Share drawn from other queries' lists: easy negatives, for a first run that learns to match topics."""

    def draw(self, lists: CandidateLists, row: int, rng: np.random.Generator, answers: Ints | None = None) -> Ints:
        """`count` different papers of the list that are no right answer; fewer only if the list has fewer.

        The right answers are the cited paper and, if given, `answers`: what the same bracket cites as well.
        """
        right = np.append(answers, lists.gold[row]) if answers is not None else lists.gold[row : row + 1]
        pool = lists.papers[row]
        pool = pool[(pool >= 0) & ~np.isin(pool, right)]
        hard = rng.permutation(pool[: self.hard_depth])[: round(self.count * self.hard_share)]
        others = np.setdiff1d(lists.papers[rng.integers(0, len(lists), 4 * self.count)], [*pool, *right, -1])
        easy = rng.permutation(others)[: round(self.count * self.easy_share)]
        rest = rng.permutation(pool[~np.isin(pool, hard)])[: self.count - len(hard) - len(easy)]
        return np.concatenate([hard, easy, rest]).astype(np.int32)
