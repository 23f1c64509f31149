"""A bounded queue of pairs: a batch holds pairs of several requests, and work that cannot end in time is not begun.

    score() ──▶ waiting pairs, oldest request first, each in prior order
                    └▶ worker: of the pairs waiting longest, those of like length make a batch ──▶ PairScorer

A request beyond the bound is refused at once (Overloaded). When a caller leaves or its deadline passes, its waiting
pairs leave the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from citewell.inference.batches import token_batches
from citewell.reranker.pairs import PairBatch, Tokens, pair_length
from citewell.reranker.scorer import Floats, PairScorer
from citewell.runtime.errors import CitewellError, DeadlineExceeded, Overloaded

# A batch is chosen by length among so many batches' worth of waiting pairs. More would save padding, but leave larger
# gaps in what is scored by a deadline.
_LOOKAHEAD = 2
# Weight of the newest batch in the running mean of the time a token takes. Adapt quickly downwards: overestimating
# rejects work that would have fitted, underestimating only starts work that is then cut off.
_IF_SLOWER, _IF_FASTER = 0.1, 0.5
# The estimate shrinks by this factor with each refusal it causes: no batch runs then that could correct it.
_AFTER_REFUSAL = 0.9

Pair = tuple[Tokens, Tokens]
Pack = Callable[[Sequence[Pair]], PairBatch]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much the queue takes on."""

    batch_tokens: int
    """Padded tokens of a batch."""
    waiting_pairs: int
    """Pairs that may wait; a request that comes to an empty queue is always taken."""
    in_flight: int
    """Batches computed at a time."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One computed batch, for the metrics."""

    pairs: int
    tokens: int
    padded_tokens: int
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What became of a request's pairs: rows of NaN were not scored."""

    scores: Floats
    queue_seconds: float
    inference_seconds: float
    failure: CitewellError | None = None
    """Why pairs are missing, where the scorer failed after some of them had been scored."""


@dataclass(slots=True, eq=False)
class _Request:
    pairs: Sequence[Pair]
    priors: Floats
    scores: Floats
    left: int
    came: float
    done: asyncio.Future[None]
    begun: float | None = None
    inference_seconds: float = 0.0


class _Waiting(NamedTuple):
    request: _Request
    position: int
    tokens: int


@dataclass(slots=True)
class PairQueue:
    """The queue in front of one scorer."""

    scorer: PairScorer
    pack: Pack
    limits: QueueLimits
    clock: Callable[[], float]
    on_batch: Callable[[BatchReport], None] = lambda report: None
    _waiting: list[_Waiting] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: list[asyncio.Task[None]] = field(default_factory=list)
    _seconds_per_token: float = 0.0
    _running_tokens: int = 0

    @property
    def waiting_pairs(self) -> int:
        """Pairs no batch has taken yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begins to work."""
        self._workers = [asyncio.create_task(self._work()) for _ in range(self.limits.in_flight)]

    async def stop(self) -> None:
        """Ends the work; requests still waiting are cancelled."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for request in {waiting.request for waiting in self._waiting}:
            request.done.cancel()
        self._waiting.clear()

    async def score(self, pairs: Sequence[Pair], priors: Floats, seconds: float, *, allow_partial: bool) -> Scored:
        """Scores of the pairs, which come in prior order, within `seconds`.

        With `allow_partial`, what is done by then, or by the time the scorer fails. Without it DeadlineExceeded (at
        once if the work could not end in time), or the scorer's error.
        """
        if not pairs:
            return Scored(np.empty((0, 3), np.float32), 0.0, 0.0)
        request = self._request(pairs, priors)
        waiting = [_Waiting(request, i, pair_length(*pair)) for i, pair in enumerate(pairs)]
        if self._waiting and len(self._waiting) + len(pairs) > self.limits.waiting_pairs:
            raise Overloaded(
                f"{len(self._waiting)} pairs wait, {len(pairs)} more would exceed {self.limits.waiting_pairs}",
                retry_after_seconds=max(0.05, self._seconds_for(0)),
            )
        needed = self._seconds_for(sum(one.tokens for one in waiting))
        if needed > seconds and not allow_partial:
            self._seconds_per_token *= _AFTER_REFUSAL
            raise DeadlineExceeded(
                f"{len(pairs)} pairs would take about {needed:.2f} s and {max(0.0, seconds):.2f} s are left",
                stage="rerank",
            )
        self._waiting += waiting
        self._wake.set()
        failure = None
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await request.done
        except TimeoutError:
            if not allow_partial:
                raise DeadlineExceeded(
                    f"{request.left} of {len(pairs)} pairs were not scored", stage="rerank"
                ) from None
        except CitewellError as error:
            if not allow_partial or request.left == len(pairs):
                raise
            failure = error
        finally:
            if request.left:
                self._waiting = [one for one in self._waiting if one.request is not request]
        queue = (request.begun if request.begun is not None else self.clock()) - request.came
        return Scored(request.scores.copy(), queue, request.inference_seconds, failure)

    def _request(self, pairs: Sequence[Pair], priors: Floats) -> _Request:
        scores = np.full((len(pairs), 3), np.nan, np.float32)
        done = asyncio.get_running_loop().create_future()
        return _Request(pairs, priors, scores, len(pairs), self.clock(), done)

    def _seconds_for(self, tokens: int) -> float:
        """How long the work at hand and `tokens` more should take; 0 before the first batch."""
        ahead = self._running_tokens + sum(one.tokens for one in self._waiting)
        return (ahead + tokens) * self._seconds_per_token

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._take()
            if not batch:
                self._wake.clear()
                continue
            try:
                await self._compute(batch)
            except asyncio.CancelledError:
                for request in {one.request for one in batch}:
                    request.done.cancel()
                raise
            except Exception as error:
                self._fail(batch, error)

    def _take(self) -> list[_Waiting]:
        """Takes a batch from the queue: the pair that waits longest, and pairs of similar length behind it."""
        window, tokens = 0, 0
        while window < len(self._waiting) and tokens < _LOOKAHEAD * self.limits.batch_tokens:
            tokens += self._waiting[window].tokens
            window += 1
        if not window:
            return []
        lengths = [one.tokens for one in self._waiting[:window]]
        positions = next(batch for batch in token_batches(lengths, self.limits.batch_tokens) if 0 in batch)
        chosen = {int(position) for position in positions}
        batch = [self._waiting[position] for position in sorted(chosen)]
        self._waiting = [one for i, one in enumerate(self._waiting) if i not in chosen]
        return batch

    async def _compute(self, batch: list[_Waiting]) -> None:
        started = self.clock()
        requests = {one.request for one in batch}
        for request in requests:
            request.begun = request.begun if request.begun is not None else started
        tokens = sum(one.tokens for one in batch)
        packed = self.pack([one.request.pairs[one.position] for one in batch])
        priors = np.array([one.request.priors[one.position] for one in batch], np.float32)
        self._running_tokens += tokens
        try:
            scores = await self.scorer.score(packed, priors)
        finally:
            self._running_tokens -= tokens
        seconds = self.clock() - started
        speed = seconds / tokens / self.limits.in_flight
        known = self._seconds_per_token or speed
        self._seconds_per_token = known + (_IF_FASTER if speed < known else _IF_SLOWER) * (speed - known)
        for one, row in zip(batch, scores, strict=True):
            one.request.scores[one.position] = row
            one.request.left -= 1
        for request in requests:
            request.inference_seconds += seconds
            if not request.left and not request.done.done():
                request.done.set_result(None)
        self.on_batch(BatchReport(len(batch), tokens, packed.input_ids.size, len(requests), seconds))

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        for request in {one.request for one in batch}:
            if not request.done.done():
                request.done.set_exception(error)
        lost = {one.request for one in batch}
        self._waiting = [one for one in self._waiting if one.request not in lost]
