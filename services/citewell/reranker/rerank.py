"""Reranks a query's candidates: tokens, priors, one pass or two over the model, ranking."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from citewell.reranker.batching import PairQueue, Scored
from citewell.reranker.pairs import CandidateText, PairTokenizer, TokenBudget, Tokens
from citewell.reranker.scorer import LOGIT, Floats
from citewell.reranker.scores import RankedPaper, rank_priors, ranking
from citewell.runtime.errors import DeadlineExceeded, Unavailable
from citewell.scholarly.queries import Query

READ_AT_ONCE = 50
"""Candidates tokenised between two looks at the clock. A thousand long abstracts take seconds."""
READ_SHARE = 0.5
"""Of the time left, the share that tokenising may take where a partial answer is allowed. The rest is for scoring."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A paper found by retrieval."""

    paper_id: str
    rank: int
    text: CandidateText


class Partial(StrEnum):
    """Why fewer candidates were scored than asked for."""

    NO = ""
    DEADLINE = "DEADLINE"
    NO_MODEL = "NO_MODEL"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Reranking:
    """The candidates in their new order, and how long each step took."""

    papers: list[RankedPaper]
    depth: int
    partial: Partial
    queue_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    inference_seconds: float = 0.0

    @property
    def scored(self) -> int:
        return sum(paper.score is not None for paper in self.papers)


class CandidateTokens:
    """Tokens of candidates, kept by a hash of the text: a popular paper is tokenised once."""

    def __init__(self, tokenizer: PairTokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._kept: OrderedDict[bytes, Tokens] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, candidates: Sequence[Candidate]) -> list[Tokens]:
        """The tokens of each candidate, in order."""
        texts = {_key(one.text): one.text for one in candidates}
        with self._lock:
            found = {key: self._kept[key] for key in texts if key in self._kept}
        missing = [key for key in texts if key not in found]
        found |= zip(missing, self._tokenizer.candidates([texts[key] for key in missing]), strict=True)
        with self._lock:
            for key, tokens in found.items():
                self._kept[key] = tokens
                self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return [found[_key(one.text)] for one in candidates]


def _key(text: CandidateText) -> bytes:
    """A hash of everything that is shown of a candidate."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (text.title, text.abstract, *text.mentions):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One scoring of candidates: how much of their text is read, and how many candidates take part."""

    tokenizer: PairTokenizer
    tokens: CandidateTokens
    keep: int
    """How many candidates take part: the best of the pass before. The first pass scores all."""


class Reranker:
    """DAVINCI over candidates. Several passes: short texts for all, longer ones for the best."""

    def __init__(self, queue: PairQueue, passes: Sequence[Pass], decay: float, clock: Callable[[], float]) -> None:
        self._queue, self._passes, self._decay, self._clock = queue, passes, decay, clock

    async def rerank(
        self, query: Query, candidates: Sequence[Candidate], depth: int, seconds: float, *, allow_partial: bool
    ) -> Reranking:
        """Scores the best `depth` candidates by retrieval rank; the others follow in retrieval order."""
        ends = self._clock() + seconds
        candidates = sorted(candidates, key=lambda one: one.rank)
        priors = rank_priors([one.rank for one in candidates], self._decay)
        scores = np.full((len(candidates), 3), np.nan, np.float32)
        shown = np.arange(min(depth, len(candidates)))
        asked = len(shown)
        queue = tokenize = inference = 0.0
        partial = Partial.NO
        for each in self._passes:
            shown = self._best(scores, shown, each.keep)
            started = self._clock()
            share = READ_SHARE if allow_partial else 1.0
            pairs = await self._pairs(each, query, [candidates[i] for i in shown], started + share * (ends - started))
            tokenize += self._clock() - started
            read, cut = shown[: len(pairs)], len(pairs) < len(shown)
            if cut and not allow_partial:
                raise DeadlineExceeded(f"{len(pairs)} of {len(shown)} candidates were read", stage="rerank")
            try:
                done = await self._queue.score(pairs, priors[read], ends - self._clock(), allow_partial=allow_partial)
            except (Unavailable, DeadlineExceeded):  # the scorer's deadline: with allow_partial the queue has none
                if not allow_partial:
                    raise
                partial = Partial.UNAVAILABLE
                break
            partial = self._keep(scores, read, done) or (Partial.DEADLINE if cut else Partial.NO)
            if done.failure and not isinstance(done.failure, DeadlineExceeded):
                partial = Partial.UNAVAILABLE
            queue, inference = queue + done.queue_seconds, inference + done.inference_seconds
            if partial:
                break
        ids = [one.paper_id for one in candidates]
        return Reranking(ranking(ids, priors, scores), asked, partial, queue, tokenize, inference)

    @staticmethod
    def _best(scores: Floats, shown: np.ndarray, keep: int) -> np.ndarray:
        """Positions of the best candidates of the pass before, in prior order; before the first pass all of them."""
        order = np.argsort(-np.nan_to_num(scores[shown, LOGIT], nan=np.inf), kind="stable")
        return np.sort(shown[order[:keep]])

    @staticmethod
    def _keep(scores: Floats, shown: np.ndarray, done: Scored) -> Partial:
        fresh = np.isfinite(done.scores[:, LOGIT])
        whole = bool(fresh.all())
        if not whole:
            # Batches are made by length, so scored pairs may follow pairs that were not scored. Leave those out: they
            # would pass candidates of a better prior only because those were not scored.
            fresh[int(np.argmin(fresh)) :] = False
        scores[shown[fresh]] = done.scores[fresh]
        return Partial.NO if whole else Partial.DEADLINE

    async def _pairs(
        self, each: Pass, query: Query, candidates: Sequence[Candidate], ends: float
    ) -> list[tuple[Tokens, Tokens]]:
        """The query with each candidate; with the first ones only if the time ends before all are read."""
        (asked,) = await asyncio.to_thread(each.tokenizer.queries, [query])
        pairs: list[tuple[Tokens, Tokens]] = []
        for at in range(0, len(candidates), READ_AT_ONCE):
            if self._clock() >= ends:
                break
            tokens = await asyncio.to_thread(each.tokens.of, candidates[at : at + READ_AT_ONCE])
            pairs += [(asked, one) for one in tokens]
        return pairs


def shortened(budget: TokenBudget, share: float) -> TokenBudget:
    """The budget with every field cut to a share of it."""
    fields = ("context", "query_title", "query_abstract", "candidate", "mentions")
    return replace(budget, **{field: round(getattr(budget, field) * share) for field in fields})


def unscored(candidates: Sequence[Candidate], depth: int, decay: float) -> Reranking:
    """The answer where there is no model: the candidates in retrieval order."""
    candidates = sorted(candidates, key=lambda one: one.rank)
    priors = rank_priors([one.rank for one in candidates], decay)
    nothing = np.full((len(candidates), 3), np.nan, np.float32)
    papers = ranking([one.paper_id for one in candidates], priors, nothing)
    return Reranking(papers, min(depth, len(candidates)), Partial.NO_MODEL)
