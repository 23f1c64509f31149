"""The reranker's queue: batches across requests, the length limit, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.reranker.batching import BatchReport, Pair, PairQueue, QueueLimits
from citewell.reranker.pairs import PairBatch
from citewell.reranker.scorer import Floats, ScorerInfo
from citewell.runtime.errors import DeadlineExceeded, Overloaded, Unavailable


class GatedScorer:
    """Scores a pair by its first token. It computes only when the test opens the gate."""

    info = ScorerInfo("gated", "0", "test", 1, 64)

    def __init__(self, *, open_: bool = True) -> None:
        self.permits = asyncio.Semaphore(10**6 if open_ else 0)
        self.batches: list[list[int]] = []
        self.began = asyncio.Event()
        self.error: Exception | None = None

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        self.batches.append([int(row[0]) for row in batch.input_ids])
        self.began.set()
        await self.permits.acquire()
        if self.error:
            raise self.error
        return np.stack([batch.input_ids[:, 0].astype(np.float32), priors, priors], axis=1)

    def let(self, batches: int = 1000) -> None:
        for _ in range(batches):
            self.permits.release()

    async def check(self) -> None: ...

    async def close(self) -> None: ...


def pairs_of(numbers: Sequence[int], length: int = 10) -> list[Pair]:
    return [(np.full(length - 3, number, np.int32), np.empty(0, np.int32)) for number in numbers]


def pack(pairs: Sequence[Pair]) -> PairBatch:
    width = max(len(query) for query, _ in pairs)
    ids = np.stack([np.pad(query, (0, width - len(query))) for query, _ in pairs]).astype(np.int64)
    return PairBatch(ids, ids, ids)


@asynccontextmanager
async def running(
    scorer: GatedScorer, *, batch_tokens: int = 40, waiting: int = 100, reports: list[BatchReport] | None = None
) -> AsyncIterator[PairQueue]:
    on_batch = reports.append if reports is not None else lambda report: None
    queue = PairQueue(scorer, pack, QueueLimits(batch_tokens, waiting, 1), time.monotonic, on_batch)
    queue.start()
    try:
        yield queue
    finally:
        await queue.stop()


def priors(count: int) -> Floats:
    return np.linspace(1, 0, count, dtype=np.float32)


async def until(condition: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await condition.wait()


@given(st.lists(st.lists(st.integers(4, 40), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(10, 120))
@settings(max_examples=40, deadline=None)
def test_everybody_gets_the_scores_of_their_own_pairs(requests: list[list[int]], budget: int) -> None:
    """Whatever the lengths and however requests are mixed in batches."""

    async def scenario() -> None:
        scorer, reports = GatedScorer(), list[BatchReport]()
        async with running(scorer, batch_tokens=budget, waiting=1000, reports=reports) as queue:

            async def one(number: int, lengths: list[int]) -> None:
                pairs = [pairs_of([number * 100 + i], length)[0] for i, length in enumerate(lengths)]
                done = await queue.score(pairs, priors(len(pairs)), 10.0, allow_partial=False)
                np.testing.assert_array_equal(done.scores[:, 0], number * 100 + np.arange(len(pairs)))
                np.testing.assert_array_equal(done.scores[:, 1], priors(len(pairs)))

            await asyncio.gather(*(one(number, lengths) for number, lengths in enumerate(requests, 1)))
        for report in reports:
            assert report.pairs == 1 or report.padded_tokens <= budget
        assert sum(report.pairs for report in reports) == sum(map(len, requests))

    asyncio.run(scenario())


async def test_a_batch_holds_pairs_of_several_requests() -> None:
    scorer = GatedScorer(open_=False)
    async with running(scorer) as queue:
        first = asyncio.create_task(queue.score(pairs_of([1]), priors(1), 10, allow_partial=False))
        await until(scorer.began)
        rest = [asyncio.create_task(queue.score(pairs_of([n, n]), priors(2), 10, allow_partial=False)) for n in (2, 3)]
        await asyncio.sleep(0)
        scorer.let()
        await asyncio.gather(first, *rest)
    assert scorer.batches == [[1], [2, 2, 3, 3]]


async def test_beyond_the_bound_a_request_is_refused_with_a_time_to_retry() -> None:
    scorer = GatedScorer(open_=False)
    async with running(scorer, waiting=3) as queue:
        waiting = [asyncio.create_task(queue.score(pairs_of([1] * 4), priors(4), 10, allow_partial=False))]
        await until(scorer.began)
        waiting.append(asyncio.create_task(queue.score(pairs_of([2] * 5), priors(5), 10, allow_partial=False)))
        await asyncio.sleep(0)  # the second is accepted whatever its size, because the queue was empty
        with pytest.raises(Overloaded, match="5 pairs wait, 1 more would exceed 3") as caught:
            await queue.score(pairs_of([3]), priors(1), 10, allow_partial=True)
        assert caught.value.retry_after_seconds > 0
        scorer.let()
        await asyncio.gather(*waiting)


class SecondFails(GatedScorer):
    """Computes one batch; every later one fails."""

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        if self.batches:
            raise Unavailable("gone")
        return await super().score(batch, priors)


async def test_batches_done_before_a_failure_are_kept_if_a_partial_answer_is_allowed() -> None:
    async with running(SecondFails(), batch_tokens=20) as queue:
        done = await queue.score(pairs_of([1, 2, 3, 4]), priors(4), 10, allow_partial=True)
        np.testing.assert_array_equal(done.scores[:, 0], [1, 2, np.nan, np.nan])
        assert isinstance(done.failure, Unavailable)
        assert queue.waiting_pairs == 0
    async with running(SecondFails(), batch_tokens=20) as queue:
        with pytest.raises(Unavailable, match="gone"):
            await queue.score(pairs_of([1, 2, 3, 4]), priors(4), 10, allow_partial=False)


async def test_at_the_deadline_the_best_so_far_in_prior_order_or_an_error() -> None:
    scorer = GatedScorer(open_=False)
    async with running(scorer, batch_tokens=20) as queue:
        partly = asyncio.create_task(queue.score(pairs_of([1, 2, 3, 4, 5]), priors(5), 2.0, allow_partial=True))
        scorer.let(1)
        done = await partly
        np.testing.assert_array_equal(done.scores[:, 0], [1, 2, np.nan, np.nan, np.nan])
        assert queue.waiting_pairs == 0, "what was too late is not computed any more"
        scorer.let(1)
        with pytest.raises(DeadlineExceeded):
            await queue.score(pairs_of([6]), priors(1), 0.05, allow_partial=False)


async def test_what_cannot_end_in_time_is_not_begun() -> None:
    scorer = GatedScorer()
    clock = iter(range(1000))
    queue = PairQueue(scorer, pack, QueueLimits(40, 100, 1), lambda: float(next(clock)))
    queue.start()
    await queue.score(pairs_of([1] * 4), priors(4), 100, allow_partial=False)  # a batch of 40 tokens took a second
    computed = len(scorer.batches)
    with pytest.raises(DeadlineExceeded, match=r"8 pairs would take about 2\.00 s and 1\.50 s are left"):
        await queue.score(pairs_of([2] * 8), priors(8), 1.5, allow_partial=False)
    assert len(scorer.batches) == computed
    # One slow batch does not make the queue refuse requests for ever.
    for _ in range(10):
        with contextlib.suppress(DeadlineExceeded):
            await queue.score(pairs_of([2] * 8), priors(8), 1.5, allow_partial=False)
    assert len(scorer.batches) > computed
    await queue.stop()


async def test_a_caller_that_leaves_takes_its_pairs_along() -> None:
    scorer = GatedScorer(open_=False)
    async with running(scorer) as queue:
        first = asyncio.create_task(queue.score(pairs_of([1]), priors(1), 10, allow_partial=False))
        await until(scorer.began)
        leaving = asyncio.create_task(queue.score(pairs_of([2] * 9), priors(9), 10, allow_partial=False))
        await asyncio.sleep(0)
        assert queue.waiting_pairs == 9
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert queue.waiting_pairs == 0
        scorer.let()
        await first
    assert scorer.batches == [[1]]


async def test_whoever_waits_when_the_queue_stops_is_told() -> None:
    scorer = GatedScorer(open_=False)
    async with running(scorer, batch_tokens=20) as queue:
        waiting = asyncio.create_task(queue.score(pairs_of([1] * 5), priors(5), 10, allow_partial=False))
        await until(scorer.began)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)


async def test_a_scorer_out_of_reach_fails_its_requests_and_then_recovers() -> None:
    scorer = GatedScorer()
    async with running(scorer, batch_tokens=20) as queue:
        scorer.error = Unavailable("gone")
        with pytest.raises(Unavailable):
            await queue.score(pairs_of([1] * 5), priors(5), 10, allow_partial=False)
        assert queue.waiting_pairs == 0
        scorer.error = None
        done = await queue.score(pairs_of([2]), priors(1), 10, allow_partial=False)
        assert done.scores[0, 0] == 2
