"""Learning the weights of words: it finds out which words tell the cited paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.term_weights import WeightSettings, batch_scores, examples, learn
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import normalised
from citewell.profiler.word_features import FEATURES
from tests.lab_sets import invented, write_lines

SETTINGS = WeightSettings(first=20, others=10, kept=0.1, batch=16, epochs=20, learning_rate=0.1, validation_queries=50)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Against all habits, only sentences without the marker name the cited paper. Vectors tell nothing."""
    papers, contexts, splits = invented(96)
    titles = {paper["id"]: paper["title"] for paper in papers}
    for number, context in enumerate(contexts):
        other = papers[(7 * number) % len(papers)]["title"]
        context["text"] = f"{other} long before it TARGETCIT says. {titles[context['cited_id']]}."
    data = read_dataset(write_lines(tmp_path / "set", papers, contexts, splits))
    alike = normalised(np.ones((len(data.papers), 4)))
    vectors = TextVectors(alike, normalised(np.ones((len(data.contexts), 4))), "alike")
    task = make_task(data, "validation", Mode.INDUCTIVE)
    known = citations(data, np.empty(0, np.int64))
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def test_what_tells_the_cited_paper_is_learned(experiment: Experiment) -> None:
    found = learn(experiment, SETTINGS, lambda *_: None, {})
    weights = dict(zip(FEATURES, found.weights.weights.tolist(), strict=True))
    assert weights["sentence"] < -0.3
    assert found.trained["MRR"] > max(found.without["MRR"], found.packaged["MRR"]) + 5
    assert found.best == "trained"
    lossy = replace(found, trained=found.trained | {"R@300": -1.0})
    assert lossy.best != "trained"
    assert learn(experiment, SETTINGS, lambda *_: None, {}).text == found.text


def test_examples_hold_the_scores_of_hybrid_and_the_cited_paper_first(experiment: Experiment) -> None:
    train = experiment.of_split("train")
    made = examples(train, SETTINGS, lambda *_: None)
    assert len(made) > 50
    queries = np.sort(train.task.queries)
    queries = queries[np.argsort(train.data.contexts.citing[queries], kind="stable")]
    assert len(queries) == len(made)  # all are found here
    with torch.no_grad():
        scores = batch_scores(made, torch.zeros(len(FEATURES)), 0.3).numpy()
    wanted = train.hybrid.scores(queries)
    cited = train.data.contexts.cited[queries]
    np.testing.assert_allclose(scores[:, 0], wanted[np.arange(len(queries)), cited], atol=1e-5)
    for row, example in enumerate(made):
        others = scores[row, 1 : 1 + SETTINGS.first]
        assert (np.diff(others) <= 1e-6).all()  # in the order of HYBRID
        assert len(example.cosine) <= 1 + SETTINGS.first + SETTINGS.others
    drawn = made[0].log_weights
    assert (drawn[: 1 + SETTINGS.first] == 0).all()


def test_no_query_to_learn_from_is_an_error(experiment: Experiment) -> None:
    nothing = replace(experiment, task=replace(experiment.task, candidates=np.zeros(len(experiment.data.papers), bool)))
    with pytest.raises(ValueError, match="nothing to learn from"):
        learn(_without_train_queries(nothing), SETTINGS, lambda *_: None, {})


def _without_train_queries(experiment: Experiment) -> Experiment:
    split = experiment.data.contexts.split
    split[split == 0] = -1
    return experiment
