"""Batches of pairs. Training batches depend only on (seed, number), so that a resumed run gets the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citewell.lab.davinci.lists import CandidateLists, Ints, NegativeSampling
from citewell.lab.davinci.priors import DECAY, Floats
from citewell.lab.davinci.texts import PairTexts
from citewell.reranker.pairs import PairBatch, PairTokenizer

_POOL = 50
"""The number of batches sorted by length together: enough to save padding, few enough to keep the order random."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs and their priors."""

    tokens: PairBatch
    priors: Floats

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of the reranker's forward pass."""
        tokens = self.tokens
        arrays = (tokens.input_ids, tokens.attention_mask, tokens.token_type_ids, self.priors)
        return tuple(torch.from_numpy(array).to(device) for array in arrays)  # type: ignore[return-value]


class PairBatches:
    """Makes batches of the pairs that candidate lists and texts define."""

    def __init__(self, lists: CandidateLists, texts: PairTexts, tokenizer: PairTokenizer, decay: float = DECAY) -> None:
        self.lists, self._texts, self._tokenizer, self._decay = lists, texts, tokenizer, decay

    @property
    def identity(self) -> str:
        """Everything that tokens and priors of a pair depend on, except lists and data set."""
        shown = self._texts.mentions.count if self._texts.mentions else 0
        return f"{self._texts.data.name} {self._tokenizer.budget} mentions={shown} decay={self._decay}"

    def take(self, rows: NDArray[np.integer[Any]]) -> PairBatches:
        """The pairs of some queries."""
        return PairBatches(self.lists.take(rows), self._texts, self._tokenizer, self._decay)

    def of(self, rows: Sequence[int], papers: Sequence[Ints]) -> Batch:
        """One batch: for each row of the lists, its pairs with these papers, in this order."""
        queries = [int(self.lists.queries[row]) for row in rows]
        repeated = np.repeat(np.arange(len(rows)), [len(some) for some in papers])
        asked = zip(repeated, np.concatenate(papers), strict=True)
        candidates = self._tokenizer.candidates([self._texts.candidate(queries[at], int(paper)) for at, paper in asked])
        tokens = self._tokenizer.queries([self._texts.query(query) for query in queries])
        pairs = [(tokens[query], candidate) for query, candidate in zip(repeated, candidates, strict=True)]
        priors = [self.lists.priors(row, some, self._decay) for row, some in zip(rows, papers, strict=True)]
        return Batch(self._tokenizer.pack(pairs), np.concatenate(priors))


class TrainingBatches:
    """Queries in a new order every epoch, each with fresh negatives; the positive comes first."""

    def __init__(
        self,
        pairs: PairBatches,
        sampling: NegativeSampling,
        queries: int,
        lengths: Ints,
        seed: int,
        answers: Callable[[int], Ints] | None = None,
    ) -> None:
        """`queries` per batch; `lengths` of all queries, so that a batch holds queries of similar length.

        `answers` tells what a context's whole bracket cites (`Brackets.answers`): none of it becomes a negative.
        """
        if len(pairs.lists) < queries:
            raise ValueError(f"a batch needs {queries} queries, there are {len(pairs.lists)}")
        self._pairs, self._sampling, self._queries, self._lengths, self._seed = pairs, sampling, queries, lengths, seed
        self._answers = answers
        self._order = lru_cache(maxsize=1)(self._draw_order)

    @property
    def per_epoch(self) -> int:
        """Batches per epoch. An incomplete last batch is dropped; each epoch has another order."""
        return len(self._pairs.lists) // self._queries

    def batch(self, number: int) -> Batch:
        """The batch of this number, counted over all epochs."""
        epoch, at = divmod(number, self.per_epoch)
        rows = [int(row) for row in self._order(epoch)[at]]
        rng = np.random.default_rng((self._seed, 1, number))
        lists = self._pairs.lists
        papers = [np.append(lists.gold[row], self._draw(row, rng)).astype(np.int32) for row in rows]
        if min(map(len, papers)) <= self._sampling.count:
            raise ValueError(f"a list in batch {number} is too short for {self._sampling.count} negatives")
        return self._pairs.of(rows, papers)

    def _draw(self, row: int, rng: np.random.Generator) -> Ints:
        lists = self._pairs.lists
        answers = self._answers(int(lists.queries[row])) if self._answers else None
        return self._sampling.draw(lists, row, rng, answers)

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        rng = np.random.default_rng((self._seed, 0, epoch))
        shuffled = rng.permutation(len(self._lengths))[: self.per_epoch * self._queries]
        pools = np.split(shuffled, range(_POOL * self._queries, len(shuffled), _POOL * self._queries))
        ordered = np.concatenate([pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools])
        batches = ordered.reshape(-1, self._queries)
        return batches[rng.permutation(len(batches))]
