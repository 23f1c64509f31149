"""Rivals by the commands alone: trained, measured beside ours, and every row kept."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.cli import app
from tests.lab_sets import invented, write_lines

SMALL = {"dimensions": 16, "heads": 4, "inner": 32, "least_often": 1, "batch": 8, "mined_depth": 5, "refresh": 3}


def citewell(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.timeout(900)  # all systems are measured, which a crowded machine does slowly
def test_hatten_is_trained_and_stands_in_the_papers_tables_beside_ours(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "acl", *invented())
    models, rows, out = tmp_path / "models", tmp_path / "rows", tmp_path / "pages"
    protocol = ("--mode", "inductive", "--cache", tmp_path / "cache")
    (tmp_path / "settings.json").write_text(json.dumps(SMALL))
    training = ("train", "hatten", data, models, *protocol, "--settings", tmp_path / "settings.json")
    citewell(*training, "--steps", 4)
    assert "step 7" in citewell(*training, "--steps", 7, "--set", "seed=13").output, "the run is continued"
    transductive = tuple("transductive" if each == "inductive" else str(each) for each in training)
    refused = CliRunner().invoke(app, [*transductive, "--steps", "9", "--set", "seed=13"])
    assert refused.exit_code == 1
    assert "was begun with mode 'inductive', not 'transductive'" in refused.output

    asked = ("report", "tables", data, *protocol, "--rows", rows, "--models", models, "--queries", 12)
    reranked = ("--rerank-queries", 2, "--depth", 12)
    printed = citewell(*asked, *reranked, "--out", out, "--output", "csv").stdout
    found = list(csv.DictReader(io.StringIO(printed)))
    assert {line["table"].split(",")[0] for line in found} == {
        "profiler-davinci",
        "hatten-scibert",
        "ilciter",
        "citeomatic",
    }
    retrieved = {line["system"] for line in found if "retrieval" in line["table"]}
    assert {"HAtten", "HAtten + enricher (references)", "Profiler (ours)", "HYBRID (ours)"} <= retrieved
    published = next(line for line in found if line["system"] == "HAtten" and line["column"].startswith("published"))
    assert published["figure"].startswith("21.1 / 40.3")
    minutes = next(line for line in found if line["system"] == "HAtten" and line["column"] == "training CPU min")
    assert float(minutes["figure"]) >= 0

    page = (out / "rivals-acl.md").read_text()
    assert page.index("## Where a rival wins") < page.index("profiler-davinci, Table 2")
    for stem in ("pareto", "recall", "in-degree", "age"):
        assert f"(rivals-acl-{stem}.svg)" in page
        assert (out / f"rivals-acl-{stem}.svg").stat().st_size > 1000

    kept = {path: path.stat().st_mtime_ns for path in rows.iterdir()}
    again = citewell(*asked, *reranked)
    assert kept == {path: path.stat().st_mtime_ns for path in rows.iterdir()}, "no row is measured again"
    assert max(map(len, again.stdout.splitlines())) <= 80


def test_a_setting_that_a_rival_lacks_is_named(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "acl", *invented())
    result = CliRunner().invoke(
        app, ["train", "hatten", str(data), str(tmp_path), "--mode", "inductive", "--set", "depht=3"]
    )
    assert result.exit_code == 1
    assert "hatten has no setting 'depht'" in result.output
