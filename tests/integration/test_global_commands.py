"""`citewell train nnselect`, `train citeomatic` and `evaluate global` on an invented corpus with authors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from citewell.lab.commands import evaluate, train
from tests.lab_sets import invented, write_lines


def _called(app: object, *arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    return result.stdout


def test_citeomatic_is_trained_and_stands_beside_global(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    papers, contexts, splits = invented()
    for number, paper in enumerate(papers):
        paper["authors"] = [f"writer {number % 3}"]
    data, models = write_lines(tmp_path / "invented", papers, contexts, splits), tmp_path / "models"
    common = ("--mode", "inductive", "--cache", str(tmp_path / "cache"))
    small = ("--set", "least_count=1", "--set", "dimension=8", "--set", "neighbours=8", "--steps", "4")
    _called(train.app, "nnselect", str(data), str(models), *common, *small)
    select = ("--set", f"select={models / 'invented' / 'nnselect'}")
    for name in ("citeomatic", "citeomatic-metadata"):
        _called(train.app, name, str(data), str(models), *common, *small, *select)
    asked = ("global", str(data), *common, "--split", "test", "--models", str(models))
    stated = json.loads(_called(evaluate.app, *asked, "--kin", "authors", "-o", "json"))
    systems = {"bm25", "global-no-references", "global", "nnselect", "citeomatic", "citeomatic-metadata"}
    assert set(stated["systems"]) == systems
    for figures in stated["systems"].values():
        precision, recall = figures["P@20"]["mean"], figures["R@20"]["mean"]
        expected = 2 * precision * recall / (precision + recall) if precision + recall else 0
        assert figures["F1@20"]["mean"] == pytest.approx(expected)
        assert figures["MRR"]["low"] <= figures["MRR"]["mean"] <= figures["MRR"]["high"]
    for told in stated["kin"].values():  # a third of all papers share the author
        assert 0 < told["100"]["share"] < 100
        assert 1 <= told["100"]["mean rank"] <= told["100"]["max rank"]
    text = _called(evaluate.app, *asked, "--kin", "venue")
    assert max(map(len, text.splitlines())) <= 80
    rows = list(csv.DictReader(io.StringIO(_called(evaluate.app, *asked, "-o", "csv"))))
    assert {row["system"] for row in rows} == systems


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--system", "citation-oracle"), "'citation-oracle' is no system"),
        (("--system", "nnselect"), "nnselect is trained: --models names the folder"),
        (("--kin", "friends"), "--kin is 'friends', not one of authors, venue"),
        (("--least", "40"), "no validation paper of invented cites 40 candidates"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(tmp_path: Path, more: tuple[str, ...], told: str) -> None:
    data = write_lines(tmp_path / "invented", *invented())
    arguments = ["global", str(data), "--mode", "inductive", "--cache", str(tmp_path / "cache"), *more]
    result = CliRunner().invoke(evaluate.app, arguments)
    assert result.exit_code == 1
    assert told in result.output
