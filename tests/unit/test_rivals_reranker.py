"""HAtten's reranker: its input, gradients, that it overfits and its loss falls, and that training resumes exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.experiment import Experiment
from citewell.lab.rivals.scibert_reranker import SCIBERT_RERANKER, Pairs, RerankerLearner, RerankerSettings
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from tests.rivals_world import small_experiment
from tests.unit.davinci_world import write_encoder


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return small_experiment(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> RerankerSettings:
    return RerankerSettings(
        encoder=str(write_encoder(tmp_path / "encoder")),
        candidates="profiler",
        depth=20,
        negatives=6,
        rate=1e-2,
        abstract_words=3,
        context_words=5,
        longest=64,
        freeze_words=False,
        validation_queries=5,
        validation_depth=10,
    )


def learner(settings: RerankerSettings, experiment: Experiment) -> RerankerLearner:
    return RerankerLearner(settings, experiment, lambda *_: None)


def test_a_pair_is_title_abstract_and_context_then_the_candidates_title_and_abstract(
    experiment: Experiment, settings: RerankerSettings
) -> None:
    data, pairs = experiment.data, Pairs(experiment.data, settings)
    row = int(experiment.task.queries[0])
    citing, said = int(data.contexts.citing[row]), data.contexts.texts[row].split()
    place = said.index("TARGETCIT")
    abstract = " ".join(data.papers.abstracts[citing].split()[:3])
    assert pairs.query(row) == f"{data.papers.titles[citing]} {abstract} {' '.join(said[place - 2 : place + 3])}"
    ids, mask, types = pairs.of((row, np.array([0, 7])))
    assert ids.shape == mask.shape == types.shape
    first = ids[0][mask[0] == 1]
    assert (first == 3).sum() == 2, "[SEP] after either side"
    assert int(first[0]) == 2, "[CLS] comes first"


def test_its_size_is_the_encoders_and_one_linear_layer(experiment: Experiment, settings: RerankerSettings) -> None:
    model = learner(settings, experiment).model
    encoder = sum(each.numel() for each in model.encoder.parameters())
    assert sum(each.numel() for each in model.parameters()) == encoder + 16 + 1
    with torch.no_grad():
        scores = model(*Pairs(experiment.data, settings).of((int(experiment.task.queries[0]), np.arange(4))))
    assert scores.shape == (4,)
    assert ((scores > 0) & (scores < 1)).all()


def test_gradients_flow_to_every_parameter(experiment: Experiment, settings: RerankerSettings) -> None:
    learning = learner(settings, experiment)
    torch.autograd.backward(learning.loss(np.array([0]), np.random.default_rng(0)))
    still = [
        name
        for name, each in learning.model.named_parameters()
        # A key's bias moves every attention score of a place alike: its gradient is zero by construction.
        if "key.bias" not in name and (each.grad is None or not each.grad.abs().sum() > 0)
    ]
    assert still == []


def test_the_loss_of_several_queries_is_the_mean_of_their_losses(
    experiment: Experiment, settings: RerankerSettings
) -> None:
    learning = learner(replace(settings, rate=3e-3), experiment)
    learning.lists = learning.lists.take(np.arange(4))
    for number in range(60):
        learning.step(number)
    for module in learning.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rng = np.random.default_rng(3)
    together = float(learning.loss(np.array([0, 1]), rng).detach())
    rng = np.random.default_rng(3)
    apart = [float(learning.loss(np.array([row]), rng).detach()) for row in (0, 1)]
    assert abs(apart[0] - apart[1]) > 0.005, "else any of them would pass"
    assert together == pytest.approx(np.mean(apart), abs=1e-3)


def test_negatives_come_from_the_querys_own_list(experiment: Experiment, settings: RerankerSettings) -> None:
    learning = learner(settings, experiment)
    query, drawn = learning.drawn(0, np.random.default_rng(0))
    assert query == learning.lists.queries[0]
    assert drawn[0] == learning.lists.gold[0]
    assert len(set(drawn.tolist())) == settings.negatives + 1
    assert set(drawn[1:].tolist()) <= set(learning.lists.papers[0].tolist())


def test_weight_decay_stays_apart_from_the_gradients(experiment: Experiment, settings: RerankerSettings) -> None:
    """Added to gradients as small as this loss's, it would be most of what Adam follows."""
    learning = learner(replace(settings, margin=-1.0), experiment)  # no pair is within this margin
    before = {name: each.detach().clone() for name, each in learning.model.named_parameters()}
    assert learning.step(0) == 0
    for name, each in learning.model.named_parameters():
        torch.testing.assert_close(each.detach(), before[name] * (1 - settings.rate * settings.decay))


def test_it_overfits_and_its_loss_falls(experiment: Experiment, settings: RerankerSettings) -> None:
    learning = learner(replace(settings, rate=3e-3), experiment)
    learning.lists = learning.lists.take(np.arange(4))
    losses = [learning.step(number) for number in range(160)]
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) / 2


def test_a_stopped_run_reaches_the_same_weights(
    experiment: Experiment, settings: RerankerSettings, tmp_path: Path
) -> None:
    found = []
    for name, stops in (("whole", (6,)), ("stopped", (2, 6))):
        run = TrainingRun(tmp_path / name)
        run.begin(settings_json(settings))
        for steps in stops:
            train(learner(settings, experiment), run, Budget(cpu_minutes=60, steps=steps, validate_every=60))
        found.append(torch.load(run.checkpoint, weights_only=True)["weights"])
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=0, atol=0)


def test_it_scores_every_candidate_of_a_list(experiment: Experiment, settings: RerankerSettings) -> None:
    learning = learner(settings, experiment)
    lists = learning.lists.take(np.arange(2))
    scores = SCIBERT_RERANKER.load(settings, experiment, learning.weights()).scores(lists)
    assert scores.shape == lists.papers.shape
    assert ((scores > 0) == (lists.papers >= 0)).all()
