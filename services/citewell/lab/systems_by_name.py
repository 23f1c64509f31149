"""The retrieval systems that commands and reports name."""

from __future__ import annotations

from collections.abc import Callable

from citewell.lab.experiment import Experiment
from citewell.lab.lexical import PlainBm25
from citewell.lab.second_phase.system import SecondPhaseSystem
from citewell.lab.systems import System


def _second_phase(experiment: Experiment) -> SecondPhaseSystem:
    if experiment.second_phase is None:
        raise ValueError('the system "second-phase" needs a model, and the second phase is "none": take "hybrid"')
    return SecondPhaseSystem(experiment, experiment.second_phase)


SYSTEMS: dict[str, Callable[[Experiment], System]] = {
    "profiler": lambda experiment: experiment.profiler,
    "content": lambda experiment: experiment.content,
    "bm25": lambda experiment: PlainBm25("bm25", experiment.data, None),
    "bm25-contexts": lambda experiment: PlainBm25("bm25-contexts", experiment.data, experiment.known),
    "lexical-profile": lambda experiment: experiment.lexical_profile(),
    "hybrid": lambda experiment: experiment.hybrid,
    "second-phase": _second_phase,
}
"""The systems a report compares, by name."""
