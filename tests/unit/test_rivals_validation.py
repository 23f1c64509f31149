"""The sample that judges a retriever in training tells a good one from one that learned nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.lab.rivals.validation import ValidationPool
from tests.rivals_world import small_experiment


@pytest.fixture
def cited_first(tmp_path: Path) -> tuple[ValidationPool, np.ndarray]:
    """A sample, and scores by which each cited paper is the best."""
    experiment = small_experiment(tmp_path)
    pool = ValidationPool(experiment.data, experiment.of_split("validation").task, 5, 10, 13)
    cited = np.searchsorted(pool.papers, experiment.data.contexts.cited[pool.queries])
    scores = np.zeros((len(pool.queries), len(pool.papers)), np.float32)
    scores[np.arange(len(cited)), cited] = 1
    return pool, scores


def test_the_cited_paper_first_is_all_there_is_to_reach(cited_first: tuple[ValidationPool, np.ndarray]) -> None:
    pool, scores = cited_first
    assert pool.mrr(scores) == 100
    assert pool.mrr(-scores) < 50


@pytest.mark.parametrize("nothing", [0.0, np.nan])
def test_scores_that_tell_no_papers_apart_do_not_look_perfect(
    cited_first: tuple[ValidationPool, np.ndarray], nothing: float
) -> None:
    pool, scores = cited_first
    assert pool.mrr(np.full_like(scores, nothing)) < 50
