"""What a rival is: one module a system, with settings, a way to train it, and a way to use what was trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.training import Learner, State

S = TypeVar("S")
"""The settings of a rival: a frozen dataclass of JSON values, all with defaults."""
M = TypeVar("M", covariant=True)
"""What a trained rival is: a `System` (a retriever), a `ListReranker` or a `GlobalSystem`."""


class ListReranker(Protocol):
    """Orders the candidates that a retriever found."""

    name: str

    def scores(self, lists: CandidateLists) -> NDArray[np.float32]:
        """`[queries, k]`, higher is better; -inf past the end of a list."""


@dataclass(frozen=True, slots=True)
class Rival(Generic[S, M]):
    """A system of the papers."""

    name: str
    """In commands, files and rows."""
    title: str
    """In tables."""
    settings: type[S]
    learner: Callable[[S, Experiment, OnProgress], Learner] | None
    """Prepares the training on the train split; None where nothing is trained."""
    load: Callable[[S, Experiment, State], M]
    """The system for the experiment's queries, from the kept weights; they are empty where nothing is trained."""

    def read_settings(self, given: Mapping[str, Any]) -> S:
        """The settings with some values given; unknown names are an error."""
        fields = {field.name for field in dataclasses.fields(self.settings)}  # type: ignore[arg-type]
        if unknown := sorted(given.keys() - fields):
            raise ValueError(f"{self.name} has no setting {unknown[0]!r}; known: {', '.join(sorted(fields))}")
        return self.settings(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})


def run_folder(models: Path, data_name: str, rival: str) -> Path:
    """Where the run of a rival on a data set lies: `citewell train RIVAL` writes it, `citewell report tables` reads."""
    return models / data_name / rival
