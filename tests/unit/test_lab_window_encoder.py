"""Training the window encoder: it tells which contexts it learned from, and resumes to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment
from citewell.lab.training import Budget, TrainingRun, train
from citewell.lab.window_encoder import WindowLearner, WindowSettings, cosine_mrr, export_window_encoder, mrr_of
from citewell.profiler.encoder import load_encoder
from citewell.profiler.profiles import normalised
from citewell.profiler.window_encoder import load_window_encoder
from tests.lab_sets import FixedDraws
from tests.tiny_models import write_tiny_encoder
from tests.unit.sentence_world import invented_experiment, mean_loss, trained_whole_and_in_two

SETTINGS = WindowSettings(
    depth=10, hard=4, random=16, batch=8, steps=30, learning_rate=3e-3, warmup=2, validation_queries=20
)


@pytest.fixture
def enc1(tmp_path: Path) -> Path:
    return write_tiny_encoder(tmp_path / "enc1")


@pytest.fixture
def experiment(tmp_path: Path, enc1: Path) -> Experiment:
    return invented_experiment(tmp_path / "set", enc1)


def learner(experiment: Experiment, enc1: Path, tmp_path: Path) -> WindowLearner:
    windows = load_encoder(str(enc1), max_tokens=16)
    return WindowLearner(SETTINGS, experiment, windows, enc1, lambda *_: None, tmp_path / "lists.npz")


def test_the_loss_falls_and_a_stopped_run_ends_in_the_same_weights(
    experiment: Experiment, enc1: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    whole = learner(experiment, enc1, tmp_path)
    before = mean_loss(whole)
    stopped = trained_whole_and_in_two(lambda: learner(experiment, enc1, tmp_path), whole, SETTINGS.steps, tmp_path)
    assert mean_loss(whole) < before - 0.05
    ended = torch.load(stopped.checkpoint, weights_only=True)["weights"]
    kept = torch.load(stopped.kept, weights_only=True)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(ended[words], kept[words]), "the word embeddings stay as they are"


def test_the_paper_that_a_query_cites_is_no_negative_of_it(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path)
    made.model.eval()
    row = np.array([3])
    cited = int(CandidateLists.load(tmp_path / "lists.npz").gold[3])

    def loss(*drawn: int) -> float:
        with torch.no_grad():
            return float(made.loss(row, FixedDraws(*drawn)))  # type: ignore[arg-type]

    other = (cited + 1) % len(experiment.data.papers)
    assert loss(cited) == pytest.approx(loss())
    assert loss(cited, other) == pytest.approx(loss(other))
    assert loss(other) > loss()


def test_training_goes_on_from_an_earlier_run(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    run = TrainingRun(tmp_path / "first")
    run.begin("{}")
    first = learner(experiment, enc1, tmp_path)
    train(first, run, Budget(float("inf"), 3), lambda _: None)
    windows = load_encoder(str(enc1), max_tokens=16)
    settings = replace(SETTINGS, start_from=str(run.path), seed=SETTINGS.seed + 1)
    second = WindowLearner(settings, experiment, windows, enc1, lambda *_: None, tmp_path / "lists.npz")
    kept = run.weights()
    assert all(torch.equal(each, kept[name]) for name, each in second.weights().items())
    assert any(
        not torch.equal(each, kept[name]) for name, each in learner(experiment, enc1, tmp_path).weights().items()
    )


def test_what_is_exported_is_what_was_trained(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path)
    for number in range(5):
        made.step(number)
    export_window_encoder(made.weights(), str(enc1), "enc1", 16, made.teaching, tmp_path / "out")
    window = load_window_encoder(str(tmp_path / "out"), "enc1")
    assert window is not None
    text = experiment.data.contexts.texts[int(experiment.task.queries[0])]
    with torch.inference_mode():
        expected = made.vectors([window.encoder.tokenize([text])[0].ids])[0].numpy()
    assert float(window.encode(text) @ expected) > 0.97  # int8 and bf16 are not exact
    with_window = replace(experiment, window_encoder=window)
    asked = experiment.task.queries[:10]
    assert cosine_mrr(with_window, asked) == mrr_of(experiment, asked, with_window.windows(asked)) > 0
    assert cosine_mrr(experiment, asked) == 0


def test_what_reads_its_vectors_learns_from_other_contexts(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    train_split = experiment.of_split("train")
    assert np.array_equal(train_split.to_learn_from, train_split.task.queries)
    made = learner(experiment, enc1, tmp_path)
    export_window_encoder(made.weights(), str(enc1), "enc1", 16, made.teaching, tmp_path / "out")
    window = load_window_encoder(str(tmp_path / "out"), "enc1")
    rest = replace(train_split, window_encoder=window).to_learn_from
    texts = experiment.data.contexts.texts
    assert len(rest) >= len(train_split.task.queries) / 8
    assert len(rest) + len(made.teaching) == len(train_split.task.queries)
    assert not set(made.teaching) & {texts[int(row)] for row in rest}
    validation = replace(experiment, window_encoder=window).to_learn_from
    assert np.array_equal(validation, experiment.task.queries), "of other splits nothing is left out"


def test_contexts_that_an_earlier_run_may_have_learned_from_count_too(
    experiment: Experiment, enc1: Path, tmp_path: Path
) -> None:
    run = TrainingRun(tmp_path / "first")
    run.begin("{}")
    train(learner(experiment, enc1, tmp_path), run, Budget(float("inf"), 1), lambda _: None)
    windows = load_encoder(str(enc1), max_tokens=16)
    few = replace(SETTINGS, queries=20, start_from=str(run.path))
    second = WindowLearner(few, experiment, windows, enc1, lambda *_: None, tmp_path / "few.npz")
    export_window_encoder(second.weights(), str(enc1), "enc1", 16, second.teaching, tmp_path / "out")
    rest = replace(
        experiment.of_split("train"), window_encoder=load_window_encoder(str(tmp_path / "out"), "enc1")
    ).to_learn_from
    texts = experiment.data.contexts.texts
    assert not set(learner(experiment, enc1, tmp_path).teaching) & {texts[int(row)] for row in rest}


def test_another_corpus_is_learned_from_whole(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path)
    export_window_encoder(made.weights(), str(enc1), "enc1", 16, ["a context of another corpus"], tmp_path / "out")
    train_split = experiment.of_split("train")
    with_window = replace(train_split, window_encoder=load_window_encoder(str(tmp_path / "out"), "enc1"))
    assert np.array_equal(with_window.to_learn_from, train_split.task.queries)


def test_the_mrr_counts_every_paper_that_scores_as_much(experiment: Experiment) -> None:
    asked = experiment.task.queries[:5]
    size = experiment.vectors.papers.shape[1]
    nothing_told = mrr_of(experiment, asked, np.zeros((5, size), np.float32))
    assert nothing_told < 10
    profiles = normalised(experiment.profiler.profiles)
    perfect = mrr_of(experiment, asked, profiles[experiment.data.contexts.cited[asked]])
    assert perfect > nothing_told
