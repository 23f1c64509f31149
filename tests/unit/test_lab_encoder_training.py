"""Fine-tuning ENC1: the loss falls, right answers are no negatives, what is exported is what a profiler loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.encoder_training import EncoderLearner, EncoderSettings, export_encoder, mean_of
from citewell.lab.experiment import Encoding, Experiment, LearnedParts, prepare
from citewell.lab.protocol import Mode
from citewell.profiler.encoder import load_encoder
from tests.tiny_models import write_tiny_encoder
from tests.unit.sentence_world import invented_experiment, mean_loss, trained_whole_and_in_two

SETTINGS = EncoderSettings(
    depth=10,
    batch=8,
    steps=60,
    learning_rate=3e-3,
    warmup=2,
    validation_queries=20,
    validation_papers=40,
    context_tokens=24,
    paper_tokens=32,
    learned_tokens=28,
)


class AlwaysThis:
    """In place of a random generator: every paper drawn is this one, and every text is the paper's own, whole."""

    def __init__(self, paper: int) -> None:
        self._paper = paper

    def integers(self, _: int) -> int:
        return self._paper

    def random(self) -> float:
        return 1.0


@pytest.fixture
def enc1(tmp_path: Path) -> Path:
    return write_tiny_encoder(tmp_path / "enc1")


@pytest.fixture
def experiment(tmp_path: Path, enc1: Path) -> Experiment:
    return invented_experiment(tmp_path / "set", enc1)


def learner(experiment: Experiment, enc1: Path, tmp_path: Path, settings: EncoderSettings = SETTINGS) -> EncoderLearner:
    return EncoderLearner(settings, experiment, str(enc1), enc1, lambda *_: None, tmp_path / "lists.npz")


def test_the_loss_falls_and_a_stopped_run_ends_in_the_same_weights(
    experiment: Experiment, enc1: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    whole = learner(experiment, enc1, tmp_path)
    before, found_before = mean_loss(whole), whole.validate()
    trained_whole_and_in_two(lambda: learner(experiment, enc1, tmp_path), whole, SETTINGS.steps, tmp_path)
    assert mean_loss(whole) < before - 0.1
    assert whole.validate() > found_before


def test_a_right_answer_is_no_negative(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path, replace(SETTINGS, said_by_others=0.0, bare=0.0))
    made.model.eval()
    gold = made._lists.gold
    paper = int(np.bincount(gold).argmax())
    same = np.flatnonzero(gold == paper)[:3]
    other = np.flatnonzero(gold != paper)[:2]
    made._lists.papers[:] = -1  # no candidates: each query's hard negative is drawn from all papers

    def loss(rows: np.ndarray) -> float:
        with torch.no_grad():
            return float(made.loss(rows, AlwaysThis(paper)))  # type: ignore[arg-type]

    # The hard negatives, and what the others of the batch cite, are right answers to all of them: nothing is ranked.
    assert loss(same) == pytest.approx(0.0)
    assert loss(np.concatenate([same, other])) > 0.1


def test_what_is_exported_is_what_was_trained_and_reads_shorter_contexts(
    experiment: Experiment, enc1: Path, tmp_path: Path
) -> None:
    made = learner(experiment, enc1, tmp_path)
    for number in range(5):
        made.step(number)
    out = tmp_path / "out"
    export_encoder(made.weights(), str(enc1), SETTINGS, made.teaching, out)
    encoder = load_encoder(str(out))
    text = experiment.data.contexts.texts[int(experiment.task.queries[0])]
    read = encoder.tokenize([text, experiment.data.papers.titles[0] * 9])
    assert [len(each.ids) for each in read] == [SETTINGS.context_tokens, SETTINGS.paper_tokens]
    expected = made.encoded([read[0].ids])[0]
    assert float(encoder.encode([text])[0] @ expected) > 0.97  # int8 and bf16 are not exact


def test_what_reads_its_vectors_learns_from_other_contexts(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path)
    export_encoder(made.weights(), str(enc1), SETTINGS, made.teaching, tmp_path / "out")
    tuned = prepare(
        tmp_path / "set",
        "train",
        Mode.INDUCTIVE,
        Encoding(str(tmp_path / "out")),
        tmp_path / "cache",
        lambda *_: None,
        learned=LearnedParts("none", "none", "none", "none"),
    )
    texts = tuned.data.contexts.texts
    assert 0 < len(tuned.to_learn_from) < len(tuned.task.queries) / 2
    assert not set(made.teaching) & {texts[int(row)] for row in tuned.to_learn_from}


def test_the_mean_lies_between_start_and_end(experiment: Experiment, enc1: Path, tmp_path: Path) -> None:
    made = learner(experiment, enc1, tmp_path)
    start = made.weights()
    made.step(0)
    end = made.weights()
    half = mean_of(end, start, 0.5)
    name = next(name for name in end if "query.weight" in name)
    assert torch.allclose(half[name], (start[name] + end[name]) / 2)
    assert not torch.equal(half[name], end[name])
    assert all(torch.equal(each, end[name]) for name, each in mean_of(end, start, 1.0).items())
