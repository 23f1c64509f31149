"""The retrieval systems that commands and reports name."""

from __future__ import annotations

from collections.abc import Callable

from citewell.index.second_phase_model import packaged_model
from citewell.lab.experiment import Experiment
from citewell.lab.lexical import PlainBm25
from citewell.lab.second_phase.system import SecondPhaseSystem
from citewell.lab.systems import System

SYSTEMS: dict[str, Callable[[Experiment], System]] = {
    "profiler": lambda experiment: experiment.profiler,
    "content": lambda experiment: experiment.content,
    "bm25": lambda experiment: PlainBm25("bm25", experiment.data, None),
    "bm25-contexts": lambda experiment: PlainBm25("bm25-contexts", experiment.data, experiment.known),
    "lexical-profile": lambda experiment: experiment.lexical_profile(),
    "hybrid": lambda experiment: experiment.hybrid,
    "second-phase": lambda experiment: SecondPhaseSystem(experiment, experiment.second_phase or packaged_model()),
}
"""The systems a report compares, by name."""
