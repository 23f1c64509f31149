"""A run that is continued must learn from what it was begun with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citewell.lab.dataset import read_dataset
from citewell.lab.origins import origin_of, same_origin
from citewell.lab.protocol import Mode
from tests.lab_sets import invented, write_lines


def test_a_grown_set_or_another_mode_is_refused_by_name(tmp_path: Path) -> None:
    small = read_dataset(write_lines(tmp_path / "set", *invented()))
    grown = read_dataset(write_lines(tmp_path / "more" / "set", *invented(60)))
    run = tmp_path / "run"
    same_origin(run, origin_of(small, Mode.INDUCTIVE))
    same_origin(run, origin_of(small, Mode.INDUCTIVE))
    with pytest.raises(ValueError, match=r"run was begun with papers 48, not 60; contexts \d+, not \d+: name another"):
        same_origin(run, origin_of(grown, Mode.INDUCTIVE))
    with pytest.raises(ValueError, match="begun with mode 'inductive', not 'transductive'"):
        same_origin(run, origin_of(small, Mode.TRANSDUCTIVE))
    assert json.loads((run / "origin.json").read_text())["data"] == "set"
