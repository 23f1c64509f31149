"""The contract of every PairScorer: the same scores wherever they are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from citewell.inference.davinci_graph import joined
from citewell.inference.sessions import Runtime
from citewell.reranker.in_process import InProcessScorer
from citewell.reranker.model_files import ModelFolder, read_model_folder
from citewell.reranker.pairs import PairBatch
from citewell.reranker.scorer import LOGIT, Floats, PairScorer
from citewell.reranker.scores import sigmoid
from citewell.reranker.triton import TritonScorer
from tests.tiny_models import tiny_davinci_graphs, tiny_tokenizer, write_tiny_davinci

ADAPTERS = ["onnxruntime", "openvino", "triton"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return read_model_folder(write_tiny_davinci(tmp_path_factory.mktemp("davinci") / "model"))


@pytest.fixture(params=ADAPTERS)
async def scorer(request: pytest.FixtureRequest, model: ModelFolder) -> AsyncIterator[PairScorer]:
    made: PairScorer
    if request.param == "triton":
        made = TritonScorer(model, request.getfixturevalue("triton_server").address, "davinci", timeout_seconds=10)
    else:
        made = InProcessScorer(model, Runtime(request.param), "fp32", 1, kept_bytes=4000)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def reference() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(joined(*tiny_davinci_graphs()).SerializeToString())


def batch_of(lengths: list[int], seed: int = 0) -> tuple[PairBatch, Floats]:
    """Pairs of random words with these lengths, and their priors."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, tiny_tokenizer().get_vocab_size(), (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    types = (np.arange(max(lengths)) >= 6).astype(np.int64) * mask
    priors = np.power(0.95, rng.integers(1, 300, len(lengths))).astype(np.float32)
    return PairBatch(ids * mask, mask, types), priors


def expected(reference: onnxruntime.InferenceSession, batch: PairBatch, priors: Floats) -> Floats:
    feed: dict[str, Any] = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "token_type_ids": batch.token_type_ids,
        "prior": priors[:, None],
    }
    scores: Floats = reference.run(None, feed)[0]
    return scores


def assert_same(scores: Floats, wanted: Floats) -> None:
    assert scores.shape == wanted.shape
    np.testing.assert_allclose(scores[:, 1:], wanted[:, 1:], atol=1e-3)
    ours, theirs = ([sigmoid(float(logit)) for logit in each[:, LOGIT]] for each in (scores, wanted))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    order = np.argsort(-scores[:, LOGIT])
    assert (np.diff(np.array(theirs)[order]) < 1e-3).all(), "the ranking differs by more than ties"


@pytest.mark.parametrize(
    "lengths", [[12] * 8, [7, 40, 23, 64, 11, 9, 31], [10], [5] * 600], ids=["even", "mixed", "one", "many"]
)
async def test_scores_and_ranking(
    scorer: PairScorer, reference: onnxruntime.InferenceSession, lengths: list[int]
) -> None:
    batch, priors = batch_of(lengths)
    scores = await scorer.score(batch, priors)
    assert scores.dtype == np.float32
    assert_same(scores, expected(reference, batch, priors))


async def test_the_prior_counts(scorer: PairScorer) -> None:
    batch, _ = batch_of([20] * 2)
    twice = PairBatch(
        *(np.repeat(array[:1], 2, axis=0) for array in (batch.input_ids, batch.attention_mask, batch.token_type_ids))
    )
    near, far = await scorer.score(twice, np.array([0.95, 0.05], np.float32))
    assert abs(near[LOGIT] - far[LOGIT]) > 1e-3


async def test_a_pair_does_not_depend_on_its_batch(scorer: PairScorer) -> None:
    batch, priors = batch_of([30, 12, 64])
    together = await scorer.score(batch, priors)
    alone = PairBatch(*(array[1:2, :12] for array in (batch.input_ids, batch.attention_mask, batch.token_type_ids)))
    assert_same(await scorer.score(alone, priors[1:2]), together[1:2])


async def test_many_at_once(scorer: PairScorer, reference: onnxruntime.InferenceSession) -> None:
    batches = [batch_of([10 + seed] * 3, seed) for seed in range(12)]
    answers = await asyncio.gather(*(scorer.score(*batch) for batch in batches))
    for (batch, priors), scores in zip(batches, answers, strict=True):
        assert_same(scores, expected(reference, batch, priors))


async def test_a_cancelled_batch_disturbs_no_other(scorer: PairScorer, reference: onnxruntime.InferenceSession) -> None:
    batch, priors = batch_of([20] * 4)
    leaving = asyncio.create_task(scorer.score(batch, priors))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert_same(await scorer.score(batch, priors), expected(reference, batch, priors))


async def test_it_says_what_it_is_and_that_it_is_well(scorer: PairScorer, model: ModelFolder) -> None:
    await scorer.check()
    assert scorer.info.hash.startswith(model.hash)
    assert (scorer.info.name, scorer.info.hidden) == ("tiny", 16)
    assert scorer.info.runtime


async def test_versions_of_a_model_have_hashes_of_their_own(tmp_path: Path, model: ModelFolder) -> None:
    other = read_model_folder(write_tiny_davinci(tmp_path / "other", seed=1))
    one, two = (InProcessScorer(each, Runtime.ONNXRUNTIME, "fp32", 1) for each in (model, other))
    assert one.info.hash != two.info.hash
    await asyncio.gather(one.close(), two.close())
