"""The loop that trains rivals and the window encoder: checkpoints, resume, a budget, validation, the best weights kept.

A run folder holds settings.json, checkpoint.pt (to resume from), kept.pt (the weights of the best validation) and
log.jsonl. A killed run resumes at its last checkpoint; the CPU time after that checkpoint is lost, and not counted.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

State = dict[str, Any]
"""Tensors, arrays as tensors, numbers, strings, and lists and dictionaries of them: what torch saves without code."""
OnStep = Callable[[dict[str, Any]], None]


class Learner(Protocol):
    """A model in training. The random numbers of a step depend only on the seed and the step's number."""

    def step(self, number: int) -> float:
        """One optimiser step, counted from 0; returns its loss."""

    def validate(self) -> float:
        """The figure that decides which weights are kept, higher is better: MRR in % on validation queries."""

    def weights(self) -> State:
        """What the trained model is made from."""

    def state(self) -> State:
        """What a resumed run needs besides: optimiser, mined sets."""

    def restore(self, weights: State, state: State) -> None:
        """Continues from what `weights` and `state` returned."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a training may take; what is reached first ends the run."""

    cpu_minutes: float = 20.0
    """CPU time of this process, over all turns of the run: steps, mining and validation, not reading the data."""
    steps: int = 1_000_000
    validate_every: float = 3.0
    """CPU minutes between two validations."""
    checkpoint_every: float = 1.0
    """CPU minutes between two checkpoints."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The folder of one run."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def kept(self) -> Path:
        return self.path / "kept.pt"

    def settings(self) -> dict[str, Any]:
        """The settings the run was begun with."""
        found: dict[str, Any] = json.loads((self.path / "settings.json").read_text("utf-8"))
        return found

    def begin(self, settings: str) -> None:
        """Notes the settings, or checks that a run in this folder has the same."""
        file = self.path / "settings.json"
        if file.exists() and file.read_text("utf-8") != settings:
            raise ValueError(f"{self.path} holds a run with other settings; name another folder or delete it")
        self.path.mkdir(parents=True, exist_ok=True)
        file.write_text(settings, "utf-8")

    def weights(self) -> State:
        """The kept weights."""
        if not self.kept.exists():
            raise ValueError(f"{self.path} holds no trained model yet: citewell train writes it")
        found: State = torch.load(self.kept, weights_only=True)
        return found

    def cpu_minutes(self) -> float:
        """The CPU time that the run has used until its last checkpoint."""
        return float(self.log()[-1]["cpu_minutes"]) if self.log() else 0.0

    def log(self) -> list[dict[str, Any]]:
        """One entry per validation, with the mean loss since the one before."""
        file = self.path / "log.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def settings_json(settings: Any) -> str:
    """The settings as JSON, the same text for the same settings."""
    return json.dumps(dataclasses.asdict(settings), indent=1, sort_keys=True)


def train(
    learner: Learner,
    run: TrainingRun,
    budget: Budget,
    on_step: OnStep = lambda entry: None,
    *,
    turn_minutes: float = float("inf"),
) -> bool:
    """Trains until the budget is used up, and tells whether it is; `turn_minutes` of wall time end this turn early."""
    loop = _Loop(learner, run, budget)
    began = time.monotonic()
    while not loop.finished:
        if time.monotonic() - began > 60 * turn_minutes:
            loop.checkpoint()
            return False
        loop.step(on_step)
    loop.validate(on_step)
    loop.checkpoint()
    return True


class _Loop:
    def __init__(self, learner: Learner, run: TrainingRun, budget: Budget) -> None:
        self._learner, self._run, self._budget = learner, run, budget
        self._number, self._minutes, self._best = 0, 0.0, -1.0
        self._validated = self._saved = 0.0
        self._losses: list[float] = []
        self._entries: list[dict[str, Any]] = []
        if run.checkpoint.exists():
            found = torch.load(run.checkpoint, weights_only=True)
            learner.restore(found["weights"], found["state"])
            self._number, self._minutes, self._best = found["number"], found["minutes"], found["best"]
            self._validated, self._losses, self._entries = found["validated"], found["losses"], found["entries"]
            self._saved = self._minutes
        self._clock = time.process_time()

    @property
    def finished(self) -> bool:
        return self._number >= self._budget.steps or self._minutes >= self._budget.cpu_minutes

    def step(self, on_step: OnStep) -> None:
        loss = self._learner.step(self._number)
        self._number += 1
        self._losses.append(loss)
        self._tick()
        on_step({"step": self._number, "loss": loss, "cpu_minutes": self._minutes})
        if self._minutes - self._validated >= self._budget.validate_every:
            self.validate(on_step)
        if self._minutes - self._saved >= self._budget.checkpoint_every:
            self.checkpoint()

    def validate(self, on_step: OnStep) -> None:
        """Validates unless nothing was learnt since the last validation; keeps the weights if they are better."""
        if self._entries and not self._losses:
            return
        mrr = self._learner.validate()
        self._tick()
        loss = sum(self._losses) / max(1, len(self._losses))
        entry = {"step": self._number, "loss": loss, "cpu_minutes": self._minutes, "validation_mrr": mrr}
        self._entries.append(entry)
        self._losses, self._validated = [], self._minutes
        if mrr > self._best:
            self._best = mrr
            _save(self._learner.weights(), self._run.kept)
        on_step(entry)
        self.checkpoint()

    def checkpoint(self) -> None:
        self._tick()
        self._saved = self._minutes
        progress = {
            "number": self._number,
            "minutes": self._minutes,
            "best": self._best,
            "validated": self._validated,
            "losses": self._losses,
            "entries": self._entries,
        }
        _save({"weights": self._learner.weights(), "state": self._learner.state(), **progress}, self._run.checkpoint)
        lines = "".join(json.dumps(entry) + "\n" for entry in self._entries)
        (self._run.path / "log.jsonl").write_text(lines, "utf-8")

    def _tick(self) -> None:
        now = time.process_time()
        self._minutes += (now - self._clock) / 60
        self._clock = now


def _save(state: State, path: Path) -> None:
    """Writes a whole file or none."""
    unfinished = path.with_suffix(".part")
    torch.save(state, unfinished)
    unfinished.replace(path)
