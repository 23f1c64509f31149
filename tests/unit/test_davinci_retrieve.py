"""Training lists: a train query's own citations influence neither its candidates nor its prior."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from citewell.lab.dataset import NO_SPLIT
from citewell.lab.davinci import retrieve
from citewell.lab.davinci.retrieve import candidate_lists, leaky, training_data
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.sampling import sampled
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import normalised
from tests.unit.davinci_world import write_dataset

DEPTH = 20


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    data = write_dataset(Path(tmp_path_factory.mktemp("retrieve")))
    rng = np.random.default_rng(4)
    papers, contexts = (normalised(rng.normal(size=(len(part), 16))) for part in (data.papers, data.contexts))
    return of(data, TextVectors(papers, contexts, "random"))


def of(data, vectors) -> Experiment:  # type: ignore[no-untyped-def]
    task = make_task(data, "validation", Mode.INDUCTIVE_CONTEMPORARY)
    known = citations(data, task.knowledge)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def quiet(what: str, done: int, total: int) -> None:
    """Ignores progress."""


def without_citations_of(experiment: Experiment, citing: int) -> Experiment:
    """The experiment without the citations of one paper."""
    contexts = experiment.data.contexts
    split = np.where(contexts.citing == citing, NO_SPLIT, contexts.split).astype(np.int32)
    data = dataclasses.replace(experiment.data, contexts=dataclasses.replace(contexts, split=split))
    return of(data, experiment.vectors)


def test_train_lists_are_those_of_a_corpus_in_which_the_query_paper_cites_nobody(experiment: Experiment) -> None:
    train = experiment.of_split("train")
    lists = candidate_lists(train.profiler, train, train.task.queries, DEPTH, quiet)
    for row in range(0, len(lists), 5):
        citing = int(experiment.data.contexts.citing[lists.queries[row]])
        other = without_citations_of(experiment, citing)
        scores = other.profiler.scores(lists.queries[row : row + 1])[0]
        np.testing.assert_allclose(lists.scores[row], scores[lists.papers[row]], atol=1e-5)
        assert lists.gold_score[row] == pytest.approx(float(scores[lists.gold[row]]), abs=1e-5)
        barred = ~next(train.task.eligible(experiment.data, lists.queries[row : row + 1]))
        scores[barred] = -np.inf
        assert set(lists.papers[row].tolist()) == set(np.argsort(-scores)[:DEPTH].tolist())


def test_without_the_correction_the_prior_knows_the_answer(experiment: Experiment) -> None:
    train = experiment.of_split("train")
    clean, leaked = (
        candidate_lists(each.profiler, each, train.task.queries, DEPTH, quiet).gold_position
        for each in (train, leaky(train))
    )
    assert leaked.mean() < 0.5 * clean.mean()


def test_evaluation_lists_do_not_change_with_the_correction(experiment: Experiment) -> None:
    clean, leaked = (
        candidate_lists(each.profiler, each, each.task.queries, DEPTH, quiet)
        for each in (experiment, leaky(experiment))
    )
    np.testing.assert_array_equal(clean.papers, leaked.papers)


def test_a_run_gets_the_sample_its_settings_name(experiment: Experiment) -> None:
    settings = TrainSettings(train_queries=7, validation_queries=4, depth=6, inject=True)
    data = training_data(settings, experiment, quiet)
    assert data.lists.papers.shape == (7, 6)
    assert data.validation.papers.shape == (4, 6)
    assert data.texts.mentions is None
    contexts = experiment.data.contexts
    assert np.isin(data.lists.queries, contexts.of_split("train")).all()
    assert np.isin(data.validation.queries, contexts.of_split("validation")).all()
    said = dataclasses.replace(settings, budget=dataclasses.replace(settings.budget, mentions=20), mentions=3)
    texts = training_data(said, experiment, quiet).texts
    assert texts.mentions is not None
    assert texts.mentions.count == 3


def test_unless_positives_are_injected_every_training_list_holds_its_cited_paper(experiment: Experiment) -> None:
    settings = TrainSettings(train_queries=30, validation_queries=10, depth=20)
    kept, injected = (
        training_data(dataclasses.replace(settings, inject=inject), experiment, quiet) for inject in (False, True)
    )
    assert 0 < len(kept.lists) < len(injected.lists) == 30
    assert (kept.lists.gold_position < 20).all()
    # Validation queries without a found paper are kept: omitting them would overestimate the model.
    np.testing.assert_array_equal(kept.validation.queries, injected.validation.queries)


def test_a_run_taken_up_again_reads_its_lists_back(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainSettings(train_queries=7, validation_queries=4, depth=6, inject=True)
    first = training_data(settings, experiment, quiet, RunFolder(tmp_path))

    def refuse(*_: object) -> None:
        raise AssertionError("retrieved again")

    monkeypatch.setattr(retrieve, "candidate_lists", refuse)
    again = training_data(settings, experiment, quiet, RunFolder(tmp_path))
    np.testing.assert_array_equal(again.lists.papers, first.lists.papers)
    np.testing.assert_array_equal(again.validation.scores, first.validation.scores)
    with pytest.raises(AssertionError, match="retrieved again"):
        training_data(dataclasses.replace(settings, depth=5), experiment, quiet, RunFolder(tmp_path))


def test_only_the_profiler_can_be_asked_to_leak(experiment: Experiment) -> None:
    with pytest.raises(ValueError, match="leak"):
        training_data(TrainSettings(candidates="hybrid", leave_one_out=False), experiment, quiet)


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    rows = np.arange(100)
    np.testing.assert_array_equal(sampled(rows, 10, 1), sampled(rows, 50, 1)[:10])
