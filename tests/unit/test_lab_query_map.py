"""Learning the query map: it finds a rotation between what contexts say and what profiles hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab import chosen
from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.hybrid_examples import make_examples
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.query_map import MapSettings, batch_loss, learn
from citewell.lab.retrieval import IdOrder
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import normalised
from citewell.profiler.query_map import QueryMap
from tests.lab_sets import FixedDraws, invented, write_lines

SIZE = 8
SETTINGS = MapSettings(
    depth=10, hard=6, random=16, batch=32, epochs=8, learning_rate=5e-2, temperature=0.1, validation_queries=50
)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Contexts point away from the papers they cite, by one rotation; words tell nothing."""
    papers, contexts, splits = invented(96)
    for context in contexts:
        context["text"] = "As TARGETCIT says."
    data = read_dataset(write_lines(tmp_path / "set", papers, contexts, splits))
    rng = np.random.default_rng(1)
    contents = normalised(rng.normal(size=(len(data.papers), SIZE)))
    rotation, _ = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))
    said = normalised(contents[data.contexts.cited] @ rotation).astype(np.float32)
    vectors = TextVectors(contents, said, "random")
    task = make_task(data, "validation", Mode.INDUCTIVE)
    known = citations(data, np.empty(0, np.int64))  # profiles are contents: what others say is rotated too
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def test_a_rotation_is_learned(experiment: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "lists.npz"
    learned = learn(experiment, SETTINGS, lambda *_: None, file)
    assert learned.better
    assert learned.after["MRR"] > learned.before["MRR"] + 10
    again = learn(experiment, SETTINGS, lambda *_: None, file)
    np.testing.assert_array_equal(again.context, learned.context)


def test_no_epoch_better_than_eq_4_leaves_eq_4(experiment: Experiment) -> None:
    learned = learn(experiment, replace(SETTINGS, learning_rate=0.0, epochs=2), lambda *_: None)
    assert not learned.better
    np.testing.assert_allclose(learned.context, np.eye(SIZE) * chosen.QUERY.gamma, atol=1e-3)
    np.testing.assert_allclose(learned.paper, np.eye(SIZE) * chosen.QUERY.delta, atol=1e-3)


def test_examples_hold_the_scores_of_hybrid_and_no_right_answer(experiment: Experiment) -> None:
    made = make_examples(experiment.of_split("train"), SETTINGS.queries, SETTINGS.depth, SETTINGS.seed, lambda *_: None)
    asked = normalised(chosen.QUERY.gamma * made.contexts + chosen.QUERY.delta * made.drafts)
    assert (made.candidates >= 0).any()
    assert not (made.candidates == made.cited[:, None]).any()
    cosine = np.einsum("qd,qnd->qn", asked, made.profiles[np.maximum(made.candidates, 0)])
    total = cosine + chosen.LEXICAL * made.lexical
    inside = made.candidates >= 0
    for row, there in zip(total, inside, strict=True):  # the lists were ordered by HYBRID's score
        assert (np.diff(row[there]) <= 1e-5).all()


def test_the_paper_that_a_query_cites_is_no_negative_of_it(experiment: Experiment) -> None:
    made = make_examples(experiment.of_split("train"), SETTINGS.queries, SETTINGS.depth, SETTINGS.seed, lambda *_: None)
    maps = [torch.nn.Parameter(torch.eye(SIZE)) for _ in range(2)]
    cited = int(made.cited_papers[3])

    def loss(*drawn: int) -> float:
        draws: Any = FixedDraws(*drawn)
        return float(batch_loss(maps, made, np.array([3]), SETTINGS, draws).detach())

    other = (cited + 1) % made.papers
    assert loss(cited) == pytest.approx(loss())
    assert loss(cited, other) == pytest.approx(loss(other))
    assert loss(other) > loss()


def test_hybrid_applies_the_map_and_the_profiler_does_not(experiment: Experiment) -> None:
    turned = QueryMap(-np.eye(SIZE, dtype=np.float32), np.zeros((SIZE, SIZE), np.float32), "", "")
    mapped = replace(experiment, query_map=turned)
    queries = experiment.task.queries[:3]
    np.testing.assert_array_equal(mapped.profiler.scores(queries), experiment.profiler.scores(queries))
    difference = mapped.hybrid.scores(queries) - experiment.hybrid.scores(queries)
    expected = -experiment.vectors.contexts[queries] @ experiment.profiler.profiles.T
    expected -= experiment.profiler.scores(queries)
    np.testing.assert_allclose(difference, expected, atol=1e-4)
