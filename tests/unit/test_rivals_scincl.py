"""SciNCL's recipe: bands of neighbours by the protocol, gradients, overfitting, and a run that resumes exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.experiment import Experiment
from citewell.lab.retrieval import search
from citewell.lab.rivals.citation_neighbours import Bands, CitationNeighbours, embedding
from citewell.lab.rivals.scincl import SCINCL, ScinclLearner, ScinclSettings, Texts
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from tests.rivals_world import small_experiment
from tests.unit.davinci_world import write_encoder

BANDS = Bands((1, 3), (10, 11), 1)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return small_experiment(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> ScinclSettings:
    return ScinclSettings(
        encoder=str(write_encoder(tmp_path / "encoder")),
        dimensions=8,
        positives=BANDS.positives,
        hard=BANDS.hard,
        easy=BANDS.easy,
        rate=1e-3,
        longest=40,
        freeze_words=False,
        validation_queries=5,
        validation_papers=10,
    )


def learner(settings: ScinclSettings, experiment: Experiment) -> ScinclLearner:
    return ScinclLearner(settings, experiment, lambda *_: None)


def test_the_published_bands_give_five_triplets_with_two_hard_and_three_easy_negatives() -> None:
    published = Bands()
    assert (published.count, published.hard[1] - published.hard[0] + 1, published.easy) == (5, 2, 3)
    with pytest.raises(ValueError, match="before hard negatives"):
        Bands((5, 12), (10, 11), 6)
    with pytest.raises(ValueError, match="equally many"):
        Bands((1, 3), (10, 11), 3)


def test_papers_of_one_community_are_each_others_nearest_neighbours() -> None:
    rng = np.random.default_rng(1)
    citing, cited = [], []
    for community in range(3):
        members = np.arange(20) + 20 * community
        for member in members:
            citing += [member] * 5
            cited += rng.choice(members[members != member], 5, replace=False).tolist()
    vectors = embedding(np.array(citing), np.array(cited), 60, 3, seed=1)
    nearness = vectors @ vectors.T
    np.fill_diagonal(nearness, -1)
    nearest = np.argsort(-nearness, axis=1)[:, :15]
    assert np.mean(nearest // 20 == np.arange(60)[:, None] // 20) > 0.95
    again = embedding(np.array(citing), np.array(cited), 60, 3, seed=1)
    np.testing.assert_allclose(again @ again.T, vectors @ vectors.T, atol=1e-5)


def test_triplets_come_from_their_bands_and_hold_no_evaluated_paper(experiment: Experiment) -> None:
    data = experiment.data
    graph = CitationNeighbours(data, experiment.known, 8, 1)
    evaluated = np.union1d(data.split_papers["validation"], data.split_papers["test"])
    assert len(graph.papers) > 20
    assert not np.isin(graph.papers, evaluated).any()
    rng = np.random.default_rng(2)
    for node in range(0, len(graph.papers), 7):
        ranked = graph.papers[graph.ranked(node)].tolist()
        found = graph.triplets(node, BANDS, rng)
        assert (found[:, 0] == graph.papers[node]).all()
        assert [ranked.index(paper) + 1 for paper in found[:, 1]] == [1, 2, 3]
        ranks = [ranked.index(paper) + 1 for paper in found[:, 2]]
        assert ranks[:2] == [10, 11]
        assert ranks[2] > 11


def test_a_graph_that_is_too_small_for_the_bands_is_told(experiment: Experiment) -> None:
    graph = CitationNeighbours(experiment.data, experiment.known, 8, 1)
    with pytest.raises(ValueError, match=f"the graph has {len(graph.papers)} papers, too few .* rank 4000"):
        graph.triplets(0, Bands(), np.random.default_rng(1))


def test_a_train_paper_that_cites_an_evaluated_one_brings_it_into_no_triplet(experiment: Experiment) -> None:
    data, known = experiment.data, experiment.known
    planted = known.cited.copy()
    planted[:4] = np.repeat(data.split_papers["validation"][:2], 2)
    graph = CitationNeighbours(data, replace(known, cited=planted), 8, 1)
    assert not np.isin(graph.papers, data.split_papers["validation"]).any()
    assert len(graph.papers) > 20


def test_gradients_flow_to_every_parameter(experiment: Experiment, settings: ScinclSettings) -> None:
    learning = learner(settings, experiment)
    triplets = learning.graph.triplets(0, settings.bands, np.random.default_rng(1))
    torch.autograd.backward(learning.loss(triplets))
    still = [
        name
        for name, each in learning.model.named_parameters()
        # A bias of the keys shifts all scores of a softmax alike.
        if "key.bias" not in name and (each.grad is None or not each.grad.abs().sum() > 0)
    ]
    assert still == []


def test_it_overfits_fifty_queries_and_its_loss_falls(experiment: Experiment, settings: ScinclSettings) -> None:
    learning = learner(replace(settings, rate=3e-3), experiment)
    rng = np.random.default_rng(1)
    fifty = [learning.graph.triplets(node, BANDS, rng) for node in range(min(50, len(learning.graph.papers)))]
    triplets = np.concatenate(fifty)

    def right() -> float:
        papers = np.unique(triplets)
        vectors = learning.model.encoded(Texts(experiment.data, settings).papers(papers))
        query, positive, negative = (vectors[np.searchsorted(papers, column)] for column in triplets.T)
        near, far = (np.linalg.norm(query - other, axis=1) for other in (positive, negative))
        return float(np.mean(near < far))

    before = right()
    losses = [learning._optimisers.step(learning.loss(triplets)) for _ in range(200)]
    assert np.mean(losses[-5:]) < losses[0] * 0.75
    assert right() > max(before, 0.9)


def test_a_stopped_run_reaches_the_same_weights(
    experiment: Experiment, settings: ScinclSettings, tmp_path: Path
) -> None:
    budget = Budget(cpu_minutes=5, steps=4, validate_every=0)
    kept = []
    for name, turns in (("whole", (4,)), ("stopped", (2, 4))):
        run = TrainingRun(tmp_path / name)
        run.begin(settings_json(settings))
        for steps in turns:
            train(learner(settings, experiment), run, replace(budget, steps=steps))
        kept.append(torch.load(run.checkpoint, weights_only=True)["weights"])
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_it_ranks_every_paper_by_its_distance(experiment: Experiment, settings: ScinclSettings) -> None:
    learning = learner(settings, experiment)
    system = SCINCL.load(settings, experiment, learning.weights())
    queries = experiment.task.queries[:4]
    scores = system.scores(queries)
    texts = Texts(experiment.data, settings)
    asked = learning.model.encoded(texts.contexts(queries))
    papers = learning.model.encoded(texts.papers(np.arange(len(experiment.data.papers))))
    distances = np.linalg.norm(asked[:, None] - papers[None], axis=2)
    np.testing.assert_allclose((asked**2).sum(axis=1)[:, None] - scores, distances**2, atol=0.02)
    found = search(system, experiment.data, replace(experiment.task, queries=queries), 5, experiment.order)
    assert (found.papers[:, 0] >= 0).all()
