"""The figures this project states, measured again: one YAML file a command (`citewell.lab.repro`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from citewell.lab.repro import check

FIGURES = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.mark.data
@pytest.mark.timeout(7200)  # without kept vectors every text is encoded first
@pytest.mark.skipif("CITEWELL_DATA" not in os.environ, reason="CITEWELL_DATA names no folder with the evaluation data")
@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_are_as_stated(path: Path) -> None:
    lines = check(path, Path(os.environ["CITEWELL_DATA"]))
    assert all(right for _, right in lines), "\n".join(line for line, _ in lines)
