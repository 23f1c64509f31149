"""Rankings from scores, tokens cached by text, and one or two passes over a model."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from citewell.reranker.batching import PairQueue, QueueLimits
from citewell.reranker.pairs import CandidateText, PairBatch, PairTokenizer, TokenBudget
from citewell.reranker.rerank import Candidate, CandidateTokens, Partial, Pass, Reranker, shortened, unscored
from citewell.reranker.scorer import Floats, ScorerInfo
from citewell.reranker.scores import rank_priors, ranking, sigmoid
from citewell.runtime.errors import CitewellError, DeadlineExceeded, Unavailable
from citewell.scholarly.queries import Query
from tests.tiny_models import tiny_tokenizer

BUDGET = TokenBudget(context=16, query_title=4, query_abstract=0, candidate=20, window=64)


class LengthScorer:
    """Prefers long candidates: the logit is the number of real tokens."""

    info = ScorerInfo("length", "0", "test", 1, 64)

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.unavailable_after = 10**9
        self.error: CitewellError = Unavailable("gone")

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        self.seen.append(len(priors))
        if len(self.seen) > self.unavailable_after:
            raise self.error
        tokens = batch.attention_mask.sum(axis=1).astype(np.float32)
        return np.stack([tokens, priors, priors], axis=1)

    async def check(self) -> None: ...

    async def close(self) -> None: ...


def candidate(number: int, length: int, rank: int | None = None) -> Candidate:
    return Candidate(f"p{number}", rank or number, CandidateText("", "a " * length))


def make_pass(budget: TokenBudget, keep: int) -> Pass:
    tokenizer = PairTokenizer(tiny_tokenizer(), budget)
    return Pass(tokenizer, CandidateTokens(tokenizer, 100), keep)


@pytest.fixture
async def scorer() -> LengthScorer:
    return LengthScorer()


@pytest.fixture
async def queue(scorer: LengthScorer) -> AsyncIterator[PairQueue]:
    queue = PairQueue(scorer, PairTokenizer(tiny_tokenizer(), BUDGET).pack, QueueLimits(400, 100, 1), time.monotonic)
    queue.start()
    yield queue
    await queue.stop()


QUERY = Query("see TARGETCIT for this", "title", "")


async def test_scored_candidates_come_first_and_the_rest_keeps_its_order(queue: PairQueue) -> None:
    reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, time.monotonic)
    candidates = [candidate(4, 1), candidate(1, 2), candidate(2, 9), candidate(3, 5), candidate(5, 20)]
    done = await reranker.rerank(QUERY, candidates, 3, 10, allow_partial=False)
    assert [paper.paper_id for paper in done.papers] == ["p2", "p3", "p1", "p4", "p5"]
    assert [paper.rank for paper in done.papers] == [1, 2, 3, 4, 5]
    assert [paper.score is None for paper in done.papers] == [False, False, False, True, True]
    assert (done.depth, done.scored, done.partial) == (3, 3, Partial.NO)
    assert done.papers[0].prior == pytest.approx(0.95**2)


async def test_two_passes_show_the_best_of_the_first_in_full(queue: PairQueue, scorer: LengthScorer) -> None:
    short = shortened(BUDGET, 0.5)
    assert (short.context, short.candidate, short.window) == (8, 10, 64)
    reranker = Reranker(queue, [make_pass(short, 1000), make_pass(BUDGET, 2)], 0.95, time.monotonic)
    candidates = [candidate(1, 3), candidate(2, 12), candidate(3, 18), candidate(4, 8)]
    done = await reranker.rerank(QUERY, candidates, 4, 10, allow_partial=False)
    assert scorer.seen == [4, 2]
    # Cut to ten tokens, 2 and 3 are equal; in full, 3 is longer.
    assert [paper.paper_id for paper in done.papers] == ["p3", "p2", "p4", "p1"]


async def test_a_model_out_of_reach_leaves_the_order_if_that_is_allowed(queue: PairQueue, scorer: LengthScorer) -> None:
    reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, time.monotonic)
    scorer.unavailable_after = 0
    with pytest.raises(Unavailable):
        await reranker.rerank(QUERY, [candidate(1, 3)], 4, 10, allow_partial=False)
    done = await reranker.rerank(QUERY, [candidate(1, 3), candidate(2, 9)], 4, 10, allow_partial=True)
    assert (done.partial, done.scored) == (Partial.UNAVAILABLE, 0)
    assert [paper.paper_id for paper in done.papers] == ["p1", "p2"]


async def test_reading_leaves_time_to_score_what_was_read(queue: PairQueue) -> None:
    """A thousand long abstracts take seconds to tokenise, and nobody waits for them after the deadline."""
    candidates = [candidate(number, 3) for number in range(1, 501)]
    for allow_partial in (True, False):
        ticks = itertools.count()  # a look at the clock takes a second
        reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, lambda: float(next(ticks)))  # noqa: B023
        if not allow_partial:
            with pytest.raises(DeadlineExceeded, match="of 500 candidates were read"):
                await reranker.rerank(QUERY, candidates, 500, 9, allow_partial=False)
            continue
        done = await reranker.rerank(QUERY, candidates, 500, 9, allow_partial=True)
        assert done.partial is Partial.DEADLINE
        assert 0 < done.scored < 500
        scored = [paper.paper_id for paper in done.papers if paper.score is not None]
        assert set(scored) == {f"p{number}" for number in range(1, done.scored + 1)}


async def test_a_model_that_does_not_answer_leaves_the_order_too(queue: PairQueue, scorer: LengthScorer) -> None:
    reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, time.monotonic)
    scorer.unavailable_after, scorer.error = 0, DeadlineExceeded("no answer in time")
    with pytest.raises(DeadlineExceeded):
        await reranker.rerank(QUERY, [candidate(1, 3)], 4, 10, allow_partial=False)
    done = await reranker.rerank(QUERY, [candidate(1, 3)], 4, 10, allow_partial=True)
    assert (done.partial, done.scored) == (Partial.UNAVAILABLE, 0)


async def test_what_was_scored_before_the_model_was_lost_is_answered(scorer: LengthScorer) -> None:
    limits = QueueLimits(batch_tokens=80, waiting_pairs=100, in_flight=1)
    queue = PairQueue(scorer, PairTokenizer(tiny_tokenizer(), BUDGET).pack, limits, time.monotonic)
    queue.start()
    scorer.unavailable_after = 1
    reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, time.monotonic)
    candidates = [candidate(number, 20) for number in range(1, 6)]
    done = await reranker.rerank(QUERY, candidates, 5, 10, allow_partial=True)
    await queue.stop()
    assert scorer.seen[0] == 2, "two pairs fill a batch"
    assert (done.partial, done.scored) == (Partial.UNAVAILABLE, 2)
    assert [paper.paper_id for paper in done.papers] == ["p1", "p2", "p3", "p4", "p5"]


class OneBatchScorer(LengthScorer):
    """Never finishes its second batch."""

    async def score(self, batch: PairBatch, priors: Floats) -> Floats:
        if self.seen:
            await asyncio.Event().wait()
        return await super().score(batch, priors)


async def test_a_partial_answer_counts_nothing_scored_behind_a_gap() -> None:
    scorer = OneBatchScorer()
    limits = QueueLimits(batch_tokens=80, waiting_pairs=100, in_flight=1)
    queue = PairQueue(scorer, PairTokenizer(tiny_tokenizer(), BUDGET).pack, limits, time.monotonic)
    queue.start()
    reranker = Reranker(queue, [make_pass(BUDGET, 1000)], 0.95, time.monotonic)
    candidates = [candidate(1, 20), candidate(2, 1), candidate(3, 20)]
    done = await reranker.rerank(QUERY, candidates, 3, 2.0, allow_partial=True)
    await queue.stop()
    assert scorer.seen == [2], "the two long ones make the first batch"
    assert done.partial is Partial.DEADLINE
    assert [(paper.paper_id, paper.score is not None) for paper in done.papers] == [
        ("p1", True),
        ("p2", False),
        ("p3", False),
    ]


def test_without_a_model_candidates_keep_their_order() -> None:
    done = unscored([candidate(1, 1, rank=2), candidate(2, 1, rank=1)], 50, 0.9)
    assert [(paper.paper_id, paper.rank, paper.score) for paper in done.papers] == [("p2", 1, None), ("p1", 2, None)]
    assert (done.partial, done.scored, done.depth) == (Partial.NO_MODEL, 0, 2)
    assert [paper.prior for paper in done.papers] == pytest.approx([0.9, 0.81])


def test_tokens_are_kept_by_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = PairTokenizer(tiny_tokenizer(), BUDGET)
    tokenized: list[int] = []
    real = tokenizer.candidates
    monkeypatch.setattr(tokenizer, "candidates", lambda texts: (tokenized.append(len(texts)), real(texts))[1])
    kept = CandidateTokens(tokenizer, 2)
    old, new = candidate(1, 3), Candidate("p1", 1, CandidateText("", "b b"))
    assert len(kept.of([old])[0]) == 3
    assert len(kept.of([old, new])[1]) == 2, "one id, another text: another revision, or another set of papers"
    assert len(kept.of([Candidate("p9", 1, old.text)])[0]) == 3, "two papers of one text share its tokens"
    assert tokenized == [1, 1, 0]
    kept.of([candidate(2, 1), candidate(3, 2)])  # evicts both
    kept.of([old])
    assert tokenized == [1, 1, 0, 2, 1]


@pytest.mark.parametrize(
    "other",
    [CandidateText("ab", "c"), CandidateText("a", "bc", ()), CandidateText("a", "b", ("c",)), CandidateText("", "ab")],
)
def test_texts_that_join_to_the_same_letters_are_told_apart(other: CandidateText) -> None:
    kept = CandidateTokens(PairTokenizer(tiny_tokenizer(), replace(BUDGET, candidate=12, mentions=8)), 10)
    text = CandidateText("a", "b")
    first, second = kept.of([Candidate("p1", 1, text), Candidate("p1", 1, other)])
    assert first.tolist() != second.tolist()


@given(st.lists(st.floats(-30, 30, width=32) | st.just(float("nan")), min_size=1, max_size=20))
@example([0.0, -1e-34])  # other logits, the same score
def test_ranking_is_by_score_with_ties_by_id_and_the_unscored_last(logits: list[float]) -> None:
    ids = [f"p{i:02}" for i in reversed(range(len(logits)))]
    scores = np.array([[logit, 0.5, 0.5] for logit in logits], np.float32)
    papers = ranking(ids, rank_priors(range(1, len(ids) + 1), 0.95), scores)
    scored = [paper for paper in papers if paper.score is not None]
    assert papers[: len(scored)] == scored
    assert [(-paper.score, paper.paper_id) for paper in scored] == sorted((-p.score, p.paper_id) for p in scored)
    assert [p.paper_id for p in papers[len(scored) :]] == [i for i, x in zip(ids, logits, strict=True) if np.isnan(x)]
    assert [paper.rank for paper in papers] == list(range(1, len(papers) + 1))


def test_sigmoid_tells_good_candidates_apart() -> None:
    assert sigmoid(20.0) < sigmoid(21.0) < 1.0
    assert sigmoid(-800.0) == pytest.approx(0.0)
    assert sigmoid(0.0) == 0.5


def test_budgets_too_small_for_two_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        shortened(BUDGET, 0.2)


def test_a_model_folder_says_what_it_lacks(tmp_path: Path) -> None:
    from citewell.reranker.model_files import RerankerUnusable, read_model_folder
    from tests.tiny_models import write_tiny_davinci

    folder = write_tiny_davinci(tmp_path / "model")
    first = read_model_folder(folder)
    assert first.description.budget.candidate == 20
    assert first.hash != read_model_folder(write_tiny_davinci(tmp_path / "other", seed=1)).hash
    (folder / "head.onnx").unlink()
    with pytest.raises(RerankerUnusable, match=r"has no head\.onnx"):
        read_model_folder(folder)
    (folder / "davinci.json").write_text('{"budget": {}}')
    with pytest.raises(RerankerUnusable, match=r"davinci\.json cannot be read"):
        read_model_folder(folder)
    with pytest.raises(RerankerUnusable, match=r"nowhere has no davinci\.json"):
        read_model_folder(tmp_path / "nowhere")
