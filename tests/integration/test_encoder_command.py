"""`citewell train encoder` end to end on an invented set: a folder that every command and a profiler can name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.lab.commands import evaluate
from citewell.lab.commands.train import app
from citewell.profiler.encoder import load_encoder
from tests.lab_sets import invented, write_lines


def test_a_trained_encoder_can_be_used_by_name(tmp_path: Path) -> None:
    data, out, cache = write_lines(tmp_path / "set", *invented(96)), tmp_path / "encoder", tmp_path / "cache"
    common = ["--mode", "inductive", "--cache", str(cache)]
    train = ["encoder", str(data), str(out), *common, "--steps", "4", "--batch", "8", "--validation-queries", "20"]
    result = CliRunner().invoke(app, train)
    assert result.exit_code == 0, result.output
    assert "UNEXPECTED" not in result.output, "no report of the library on what is left out on purpose"
    figures = json.loads((tmp_path / "encoder-figures.json").read_text())
    assert set(figures["validation"]) == {"ENC1", "trained"}
    for found in figures["validation"].values():
        assert set(found) == {"PROFILE", "HYBRID, weight 3", "HYBRID, weight 2"}
        assert all(0 < each["MRR"] <= 100 for each in found.values())
    encoder = load_encoder(str(out))
    assert encoder.model_hash != load_encoder().model_hash
    text = "In part 0 we use alias7 for retrieval TARGETCIT and others OTHERCIT."
    assert float(encoder.encode([text])[0] @ load_encoder().encode([text])[0]) > 0.9, "four steps change little"

    for runtime in ("openvino", "onnxruntime"):  # its weights are int8 already
        in_int8 = load_encoder(str(out), runtime=runtime, precision="int8")
        assert float(in_int8.encode([text])[0] @ encoder.encode([text])[0]) > 0.99

    again = CliRunner().invoke(app, [*train, "--no-compare", "--share", "0.5"])
    assert again.exit_code == 0, again.output
    half = load_encoder(str(out))
    assert half.model_hash != encoder.model_hash
    assert not np.array_equal(half.encode([text]), encoder.encode([text]))

    run = ["run", str(data), *common, "--encoder", str(out), "--split", "validation", "--system", "profiler"]
    told = CliRunner().invoke(evaluate.app, [*run, "--output", "json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)
