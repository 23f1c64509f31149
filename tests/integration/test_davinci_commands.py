"""From a data set to a model that is served, by the commands alone: train, evaluate, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.cli import app
from citewell.lab.davinci.runs import RunFolder
from citewell.reranker.model_files import read_model_folder
from tests.lab_sets import invented, write_lines
from tests.unit.davinci_world import write_encoder

SETTINGS = {
    "heads": ["davinci", "a1", "cross-encoder"],
    "head_size": 8,
    "budget": {"context": 12, "query_title": 6, "candidate": 10, "window": 60},
    "depth": 20,
    "steps": 4,
    "queries_per_batch": 4,
    "accumulate": 1,
    "validate_every": 2,
    "precision": "fp32",
}


def citewell(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("candidates", ["profiler", "hybrid"])
def test_a_model_is_trained_evaluated_and_exported(tmp_path: Path, candidates: str) -> None:
    data = write_lines(tmp_path / "invented", *invented())
    cache, run, other = tmp_path / "cache", tmp_path / "run", tmp_path / "other"
    mentions = {"mentions": 8} if candidates == "hybrid" else {}
    settings = {**SETTINGS, "budget": {**SETTINGS["budget"], **mentions}, "candidates": candidates}  # type: ignore[dict-item]
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "encoder": str(write_encoder(tmp_path / "enc2"))}))
    protocol = ("--mode", "inductive", "--cache", cache)
    for folder, seed in ((run, 1), (other, 2)):
        trained = citewell(
            "train", "davinci", data, folder, *protocol, "--settings", tmp_path / "settings.json", "--seed", seed
        )
        assert "step 4: validation MRR davinci" in trained.output
        assert RunFolder(folder).log()[-1]["step"] == 4
        assert f"Candidates by `{candidates}`".lower() in (folder / "card.md").read_text().lower()

    out, ranks = tmp_path / "tables.md", tmp_path / "other.ranks"
    sample = (*protocol, "--split", "test", "--queries", 30, "--depth", 20)
    citewell("evaluate", "rerank", other, data, *sample, "--keep", ranks)
    citewell("evaluate", "rerank", run, data, *sample, "--against", ranks, "--out", out)
    tables = out.read_text()
    assert "| retrieval order |" in tables
    assert "| davinci against other |" in tables
    scored = sorted((cache / "scores").iterdir())
    citewell("evaluate", "rerank", run, data, *sample, "--against", ranks, "--out", out)
    assert (out.read_text(), sorted((cache / "scores").iterdir())) == (tables, scored), "nothing is scored again"

    citewell("export", "davinci", run, "--out", tmp_path / "served")
    assert read_model_folder(tmp_path / "served").description.budget == RunFolder(run).settings.budget
