"""The systems of the global task by name: ours, and the rivals that are trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from citewell.lab.experiment import Experiment
from citewell.lab.global_strategy import DraftBm25, GlobalStrategy
from citewell.lab.rivals.registry import GLOBALS
from citewell.lab.rivals.rival import run_folder
from citewell.lab.systems import GlobalSystem
from citewell.lab.training import TrainingRun

OURS: dict[str, Callable[[Experiment], GlobalSystem]] = {
    "bm25": lambda experiment: DraftBm25("bm25", experiment.data, None),
    "global-no-references": lambda experiment: GlobalStrategy(experiment, cited_weight=0.0),
    "global": GlobalStrategy,
}
"""What needs no training; `global` is what the services answer with STRATEGY_GLOBAL."""


def made_system(name: str, experiment: Experiment, models: Path | None) -> GlobalSystem:
    """One of ours, or a trained rival."""
    if name in OURS:
        return OURS[name](experiment)
    if name not in GLOBALS:
        raise ValueError(f"{name!r} is no system; known: {', '.join([*OURS, *GLOBALS])}")
    if models is None:
        raise ValueError(f"{name} is trained: --models names the folder of its run")
    run = TrainingRun(run_folder(models, experiment.data.name, name))
    made: GlobalSystem = GLOBALS[name].load(GLOBALS[name].read_settings(run.settings()), experiment, run.weights())
    return made
