"""Citeomatic: the shapes of the paper, its loss, its negatives, that it learns, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.global_strategy import DraftBm25, GlobalStrategy
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.neighbours import Neighbours
from citewell.lab.protocol import Mode, make_task
from citewell.lab.reference_lists import global_figures, rank, reference_lists, shared_ranks
from citewell.lab.retrieval import IdOrder
from citewell.lab.rivals.citeomatic.networks import (
    HIDDEN,
    RankNetwork,
    SelectNetwork,
    WordSums,
    boost,
    parameters,
    shared_tokens,
    triplet_loss,
)
from citewell.lab.rivals.citeomatic.rank import (
    CITEOMATIC,
    CITEOMATIC_METADATA,
    MetadataSettings,
    RankLearner,
    RankSettings,
)
from citewell.lab.rivals.citeomatic.select import NNSELECT, SelectLearner, SelectSettings
from citewell.lab.rivals.citeomatic.texts import Texts, Types, read_texts
from citewell.lab.rivals.rival import run_folder
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from tests.lab_sets import invented, vectors_of, write_lines

SELECT = SelectSettings(
    least_count=1, dimension=32, dropout=0.1, rate=0.05, drafts=16, mine_every=20, fetched=20, neighbours=8
)
RANK = RankSettings(least_count=1, dimension=16, drafts=16, fetched=20, neighbours=8, rate=0.02)


def _experiment(data: Dataset) -> Experiment:
    task = make_task(data, "validation", Mode.INDUCTIVE)
    known, vectors = citations(data, task.knowledge), vectors_of(data)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    papers, contexts, splits = invented(papers=96)
    for number, paper in enumerate(papers):
        paper["authors"] = [f"writer {number % 5}", f"writer {number % 7}"]
    return _experiment(read_dataset(write_lines(tmp_path_factory.mktemp("set"), papers, contexts, splits)))


@pytest.fixture(scope="module")
def texts(experiment: Experiment) -> Texts:
    return read_texts(experiment.data, 200_000, 1, metadata=True)


def test_word_sums_are_eq_1() -> None:
    sums = WordSums(5, 3)
    with torch.no_grad():
        sums.magnitude.weight[:, 0] = torch.arange(1.0, 6.0)
    field = Types(np.array([0, 2, 2, 5]), np.array([0, 4, 1, 2, 3]), 5)
    made = sums(field, np.array([2, 1, 0]))
    direction = sums.direction.weight / sums.direction.weight.norm(dim=1, keepdim=True)
    assert torch.allclose(made[2], 1 * direction[0] + 5 * direction[4])
    assert torch.equal(made[1], torch.zeros(3))
    assert torch.allclose(made[0], 2 * direction[1] + 3 * direction[2] + 4 * direction[3], atol=1e-6)


def test_the_networks_have_the_parameters_of_the_paper(texts: Texts) -> None:
    words, venues, authors = len(texts.vocabulary), texts.fields["venue"].size, texts.fields["authors"].size
    # A magnitude and a direction a word, shared by title and abstract (siamese), and the two scalars of the fields.
    assert parameters(SelectNetwork(words, 300)) == words * 301 + 2

    def feed_forward(features: int) -> int:
        return (features + 1) * HIDDEN + (HIDDEN + 1) * HIDDEN + (HIDDEN + 1)

    # Two cosines, two sums of shared words, NNSelect's cosine, log of the in-citations; a scalar w∩ a word.
    assert parameters(RankNetwork(texts, 175, 45, ())) == words * 176 + words + feed_forward(6)
    with_metadata = RankNetwork(texts, 175, 45, ("authors", "venue"))
    assert parameters(with_metadata) == words * 176 + words + (venues + authors) * 46 + feed_forward(8)
    activations = [type(layer).__name__ for layer in with_metadata.forward_layers]
    assert activations == ["Linear", "ELU", "Linear", "ELU", "Linear"]  # the sigmoid is in the loss


def test_shared_tokens_are_the_intersection_of_two_papers() -> None:
    field = Types(np.array([0, 3, 5, 5]), np.array([7, 1, 4, 4, 9]), 10)
    pairs, tokens = shared_tokens(field, np.array([0, 0, 1]), np.array([1, 2, 1]))
    assert list(zip(pairs.tolist(), tokens.tolist(), strict=True)) == [(0, 4), (2, 4), (2, 9)]


def test_the_loss_is_that_of_appendix_b() -> None:
    cited, popular = torch.tensor([0.0]), torch.tensor([100.0])
    assert boost(popular).item() == pytest.approx(1 / (1 + np.exp(-1)) / 50)
    loss = triplet_loss(torch.tensor([0.6]), torch.tensor([0.5]), torch.tensor([0.3]), cited, popular)
    assert loss.item() == pytest.approx(0.3 + 0.5 + 0.7310586 / 50 - 0.6 - 0.5 / 50, abs=1e-6)
    assert triplet_loss(torch.tensor([0.9]), torch.tensor([0.1]), torch.tensor([0.3]), cited, cited).item() == 0


def test_negatives_are_of_the_three_kinds_and_never_cited(experiment: Experiment) -> None:
    learner = SelectLearner(SELECT, experiment, lambda *_: None)
    learner.step(0)
    source, data = learner.source, experiment.data
    triplets = source.draw(np.arange(len(source.lists)), np.random.default_rng(1))
    assert {round(margin, 3) for margin in triplets.margin.tolist()} == {0.3, 0.2, 0.1}
    known = Neighbours(experiment.of_split("train"))
    for draft, right, wrong, margin in zip(
        triplets.draft.tolist(), triplets.right.tolist(), triplets.wrong.tolist(), triplets.margin.tolist(), strict=True
    ):
        cited = known.references(draft)
        assert right in cited
        assert wrong not in cited
        assert wrong != draft
        assert data.papers.year[wrong] < data.papers.year[draft]
        if round(margin, 3) == 0.1:
            assert wrong in known.cited_by(cited)[0]
    # The draft's own citation does not count among the in-citations of what it cites.
    for right, count in zip(triplets.right.tolist(), triplets.right_citations.tolist(), strict=True):
        assert count == np.count_nonzero(experiment.known.cited == right) - 1


def test_nnselect_learns(experiment: Experiment) -> None:
    learner = SelectLearner(replace(SELECT, dropout=0.0), experiment, lambda *_: None)
    before = learner.validate()
    assert all(each.grad is None for each in learner.network.parameters())
    losses = [learner.step(number) for number in range(60)]
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
    for name, each in learner.network.named_parameters():
        assert each.grad is not None, name
        assert float(each.grad.to_dense().abs().sum()) > 0, name
    assert learner.validate() != before


def _overfitted(experiment: Experiment, folder: Path) -> tuple[float, float]:
    """MRR of NNSelect and of NNRank on 50 drafts that they were trained on."""
    select = SelectLearner(replace(SELECT, dropout=0.0), experiment, lambda *_: None)
    drafts = select.source.lists[np.arange(min(50, len(select.source.lists)))]
    select.source.lists = drafts
    for number in range(120):
        select.step(number)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(select.weights(), TrainingRun(folder).kept)
    settings = replace(RANK, select=str(folder), dropout=0.0)
    learner = RankLearner(settings, experiment, lambda *_: None)
    learner.source.lists = drafts
    losses = [learner.step(number) for number in range(150)]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    for name, each in learner.network.named_parameters():
        assert each.grad is not None, name
        assert float(each.grad.to_dense().abs().sum()) > 0, name
    trained = experiment.of_split("train")
    found = []
    for rival, chosen, weights in (
        (NNSELECT, replace(SELECT, dropout=0.0), select.weights()),
        (CITEOMATIC, settings, learner.weights()),
    ):
        system = rival.load(chosen, trained, weights)
        found.append(100 * float(rank(system, trained, drafts).values()["MRR"].mean()))
    return found[0], found[1]


def test_it_overfits_fifty_drafts(experiment: Experiment, tmp_path: Path) -> None:
    selected, ranked = _overfitted(experiment, tmp_path / "select")
    assert selected > 80
    assert ranked > 90


def test_a_run_is_trained_resumed_and_loaded(experiment: Experiment, tmp_path: Path) -> None:
    budget = Budget(steps=30, cpu_minutes=10)
    runs = {}
    for name, steps in (("whole", (30,)), ("halves", (15, 30))):
        run = TrainingRun(run_folder(tmp_path / name, "set", "nnselect"))
        run.begin(settings_json(SELECT))
        for each in steps:
            train(SelectLearner(SELECT, experiment, lambda *_: None), run, replace(budget, steps=each))
        runs[name] = torch.load(run.checkpoint, weights_only=True)["weights"]
    for name, whole in runs["whole"].items():
        assert torch.equal(whole, runs["halves"][name]), name
    settings = MetadataSettings(
        select=str(run_folder(tmp_path / "whole", "set", "nnselect")), least_count=1, dimension=8, neighbours=8
    )
    learner = RankLearner(settings, experiment, lambda *_: None)
    assert learner.fields == ("authors", "venue")
    run = TrainingRun(run_folder(tmp_path, "set", "citeomatic-metadata"))
    run.begin(settings_json(settings))
    train(learner, run, replace(budget, steps=5))
    system = CITEOMATIC_METADATA.load(settings, experiment, run.weights())
    lists = reference_lists(experiment.data, experiment.task)
    ranking = rank(system, experiment, lists)
    figures = global_figures(ranking.values(), seed=1, resamples=50)
    assert set(figures) == {"P@20", "R@20", "MRR", "F1@20"}
    assert 0 < figures["MRR"]["mean"] <= 100


def test_nnrank_without_a_trained_nnselect_says_what_is_missing(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="select must name the folder of a run of nnselect"):
        RankLearner(RANK, experiment, lambda *_: None)
    with pytest.raises(ValueError, match="holds no trained model"):
        RankLearner(replace(RANK, select=str(tmp_path)), experiment, lambda *_: None)


def test_the_metrics_are_those_of_the_paper(experiment: Experiment) -> None:
    lists = reference_lists(experiment.data, experiment.task)
    rows = [at for at, cited in enumerate(lists.cited) if len(cited) >= 2][:2]
    lists = lists[np.array(rows)]

    class Oracle:
        """Puts one right answer at rank 2, and no other."""

        name = "oracle"

        def scores(self, papers: np.ndarray) -> np.ndarray:
            found = np.full((len(papers), len(experiment.data.papers)), -np.inf, np.float32)
            for row, cited in enumerate(lists.cited):
                wrong = np.setdiff1d(np.arange(8), cited)[:1]
                found[row, wrong], found[row, cited[:1]] = 2, 1
            return found

    values = rank(Oracle(), experiment, lists).values()
    assert values["P@20"].tolist() == [1 / 20] * 2
    assert values["R@20"].tolist() == [1 / len(cited) for cited in lists.cited]
    assert values["MRR"].tolist() == [1 / 2] * 2
    figures = global_figures(values, seed=0, resamples=10)
    precision, recall = figures["P@20"]["mean"], figures["R@20"]["mean"]
    assert figures["F1@20"]["mean"] == pytest.approx(2 * precision * recall / (precision + recall))


def test_neighbours_obey_the_protocol(experiment: Experiment) -> None:
    lists, data = reference_lists(experiment.data, experiment.task), experiment.data
    neighbours = Neighbours(experiment)
    for paper in lists.papers.tolist():
        near = neighbours.nearest(paper, np.ones(len(data.papers), np.float32), 50)
        assert paper not in near
        assert (data.papers.year[near] < data.papers.year[paper]).all()
        assert len(neighbours.references(paper)) == 0  # what a validation paper cites is not known


def test_global_counts_the_words_of_the_draft_and_its_neighbours_references(experiment: Experiment) -> None:
    lists = reference_lists(experiment.data, experiment.task)
    full, bare = (GlobalStrategy(experiment, cited_weight=weight) for weight in (1.0, 0.0))
    difference = full.scores(lists.papers) - bare.scores(lists.papers)
    assert difference.min() >= -1e-5
    assert difference.max() > 0.05
    known = np.isin(np.arange(len(experiment.data.papers)), experiment.known.cited)
    assert np.abs(difference[:, ~known]).max() < 1e-5
    plain = DraftBm25("bm25", experiment.data, None)
    for system in (full, plain):
        assert rank(system, experiment, lists).values()["MRR"].mean() > 0


def test_shared_ranks_tell_where_papers_of_the_same_authors_stand() -> None:
    ranked = np.array([[4, 2, 9, -1], [1, 2, 3, 4]], np.int32)
    found = shared_ranks(ranked, lambda one, other: (one + other) % 2 == 0, np.array([10, 11]))
    assert [each.tolist() for each in found] == [[1, 2], [1, 3]]
