"""What the tests of both trainings of sentence encoders share: a small experiment, and a run that is stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.sentence_training import SentenceLearner
from citewell.lab.training import Budget, TrainingRun, train
from citewell.lab.vectors import TextVectors
from citewell.profiler.encoder import load_encoder
from tests.lab_sets import invented, write_lines

L = TypeVar("L", bound=SentenceLearner)


def invented_experiment(folder: Path, enc1: Path) -> Experiment:
    """Validation queries of an invented set, with the vectors of `enc1`."""
    data = read_dataset(write_lines(folder, *invented(96)))
    encoder = load_encoder(str(enc1))
    contexts = encoder.encode([data.contexts.texts[row] for row in range(len(data.contexts))])
    vectors = TextVectors(encoder.encode(list(data.papers.titles)), contexts, "")
    known = citations(data, np.empty(0, np.int64))
    task = make_task(data, "validation", Mode.INDUCTIVE)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def mean_loss(of: SentenceLearner) -> float:
    """Over the train contexts, always with the same draws."""
    of.model.eval()
    with torch.no_grad():
        return float(np.mean([of.loss(of.batch(at), np.random.default_rng(at)) for at in range(8)]))


def trained_whole_and_in_two(learner: Callable[[], L], whole: L, steps: int, folder: Path) -> TrainingRun:
    """Trains `whole`, and again in two turns, which must end in the same weights. Returns the run in two turns."""
    straight, stopped = TrainingRun(folder / "straight"), TrainingRun(folder / "stopped")
    for run in (straight, stopped):
        run.begin("")
    train(whole, straight, Budget(float("inf"), steps))
    train(learner(), stopped, Budget(float("inf"), 11))
    train(learner(), stopped, Budget(float("inf"), steps))
    ends = [torch.load(run.checkpoint, weights_only=True)["weights"] for run in (straight, stopped)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    return stopped
