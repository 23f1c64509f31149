"""Every stage has a name for people, the same wherever one is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

from citewell.client import Item
from citewell.client.results import STAGE_NAMES, StageScore
from citewell.editor.server import why
from citewell.recommender import items
from citewell.scholarly.papers import Paper

SERVICES = Path(__file__).parents[2] / "services" / "citewell"


def test_every_stage_of_an_answer_has_a_name() -> None:
    given = re.findall(r"StageScore\(\s*\"(\w+)\"", Path(items.__file__).read_text())
    assert list(STAGE_NAMES) == given


def test_the_page_has_the_same_names() -> None:
    page = (SERVICES / "edge" / "page" / "answers.js").read_text()
    [told] = re.findall(r"const STAGES = (\{.*?\n\});", page, re.DOTALL)
    assert dict(re.findall(r"(\w+): (\"[^\"]*\")", told)) == {
        name: json.dumps(text) for name, text in STAGE_NAMES.items()
    }


def test_the_editor_shows_no_stage_by_its_name_in_the_contract() -> None:
    stages = tuple(StageScore(name, rank, 0.5) for rank, name in enumerate(STAGE_NAMES, 1))
    shown = why(Item(1, Paper("p", "Parsing"), 0.5, stages, 0.5, 0))
    assert "retrieval and reading together #4" in shown
    assert "joined" not in shown
    assert "second_phase" not in shown
