"""A trained DAVINCI and its exported form are the same model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file

from citewell.inference.davinci_graph import joined
from citewell.reranker.model_files import GRAPHS, read_model_folder
from citewell.reranker.settings import SMALL_MODEL
from tests.tiny_models import CONFIG, RERANKER_CONFIG, tiny_davinci_weights, tiny_tokenizer

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from typer.testing import CliRunner

from citewell.lab.commands.export import app
from citewell.lab.davinci.export import Storage, build_graphs, export_folder, parity
from citewell.lab.davinci.exported import exported_weights, starting_point
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.reranker.pairs import TokenBudget


@pytest.fixture(params=[CONFIG, RERANKER_CONFIG], ids=["whole", "apart"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunFolder:
    """A run folder with random weights."""
    folder = RunFolder(tmp_path / "run")
    tokenizer = tmp_path / "tokenizer.json"
    tiny_tokenizer().save(str(tokenizer))
    budget = TokenBudget(context=16, query_title=4, candidate=20, window=CONFIG["max_position_embeddings"])
    vocabulary = tiny_tokenizer().get_vocab_size()
    config = {**request.param, "vocab_size": vocabulary, "_name_or_path": str(tmp_path)}
    folder.write_static(TrainSettings(head_size=8, budget=budget), config, tokenizer)
    save_file(tiny_davinci_weights(vocabulary), folder.weights)
    return folder


def test_fp32_is_torch_to_the_last_digits(run: RunFolder) -> None:
    graphs = build_graphs(run, Storage.FP32)
    assert parity(run, graphs, lengths=(16, 48)) < 1e-4
    weights = tiny_davinci_weights(tiny_tokenizer().get_vocab_size(), seed=3)
    save_file(weights, run.weights)
    assert parity(run, graphs, lengths=(16,)) > 1e-2, "other weights are another model"


@pytest.mark.parametrize(("storage", "tolerance"), [(Storage.INT8, 0.2), (Storage.FP16, 0.02)])
def test_smaller_storage_stays_close(run: RunFolder, storage: Storage, tolerance: float) -> None:
    assert parity(run, build_graphs(run, storage), lengths=(16, 48)) < tolerance


def test_the_graph_takes_any_batch_and_length(run: RunFolder) -> None:
    graphs = build_graphs(run, Storage.FP32)
    model = joined(*graphs.parts)
    assert model.opset_import[0].version == 17
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for pairs, length in [(1, 8), (5, 33), (2, 64)]:
        ids = np.ones((pairs, length), np.int64)
        feed = {
            "input_ids": ids,
            "attention_mask": ids,
            "token_type_ids": ids * 0,
            "prior": np.ones((pairs, 1), np.float32),
        }
        assert session.run(None, feed)[0].shape == (pairs, 3)


def test_the_command_writes_a_folder_the_reranker_reads_and_a_triton_version(run: RunFolder, tmp_path: Path) -> None:
    out, repository = tmp_path / "served", tmp_path / "triton"
    told = CliRunner().invoke(
        app,
        [
            "davinci",
            str(run.path),
            "--out",
            str(out),
            "--triton",
            str(repository),
            "--version",
            "3",
            "--cut-off",
            "2024-10-31",
            "--budget",
            "candidate=12",
        ],
    )
    assert told.exit_code == 0, told.output
    described = read_model_folder(out).description
    assert (described.precision, described.training_cut_off, described.decay) == ("int8", (2024, 10, 31), 0.95)
    assert described.budget == replace(run.settings.budget, candidate=12)
    assert json.loads((out / "davinci.json").read_text())["name"] == "davinci-minilm"
    onnxruntime.InferenceSession(repository / "davinci/3/model.onnx")


def test_a_served_folder_becomes_a_triton_version_that_scores_the_same(run: RunFolder, tmp_path: Path) -> None:
    out, repository = tmp_path / "served", tmp_path / "triton"
    export_folder(run, out, Storage.INT8, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    assert_triton_scores_as(out, str(out), repository)


def test_the_small_model_becomes_a_triton_version_with_the_graph_that_it_shares(tmp_path: Path) -> None:
    assert_triton_scores_as(SMALL_MODEL, "small", tmp_path)


def assert_triton_scores_as(folder: Path, named: str, repository: Path) -> None:
    """Exports the model that `--model` names, and compares its joined graph with the graphs of the folder."""
    arguments = ["triton", "--model", named, "--repository", str(repository), "--version", "2"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    ids, prior = np.full((2, 9), 5), np.full((2, 1), 0.9, np.float32)
    texts = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    sides, pairs, head = (onnxruntime.InferenceSession(read_model_folder(folder).file(graph)) for graph in GRAPHS)
    (states,) = sides.run(None, texts)
    (e,) = pairs.run(None, {"states": states, "attention_mask": texts["attention_mask"]})
    apart = head.run(None, {"e": e, "prior": prior})
    whole = onnxruntime.InferenceSession(repository / "davinci/2/model.onnx").run(None, {**texts, "prior": prior})
    np.testing.assert_allclose(whole[0], apart[0], atol=1e-5)


@pytest.mark.parametrize("storage", [Storage.FP32, Storage.INT8])
def test_an_exported_model_comes_back_to_torch(run: RunFolder, tmp_path: Path, storage: Storage) -> None:
    out = tmp_path / "served"
    export_folder(run, out, storage, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    source = starting_point(out)
    assert str(tmp_path) not in (out / "config.json").read_text()
    trained, back = run.model().state_dict(), source.model().state_dict()
    assert trained.keys() == back.keys()
    tolerance = 1e-7 if storage is Storage.FP32 else 0.01  # a scale is the largest weight of a column / 127
    for name, tensor in trained.items():
        np.testing.assert_allclose(back[name], tensor, atol=tolerance * float(tensor.abs().max() + 1e-6), err_msg=name)
    # A second export gives the served model again.
    again = RunFolder(tmp_path / "again")
    again.write_static(run.settings, source.encoder_config, source.tokenizer_file)
    save_file(exported_weights(out), again.weights)
    export_folder(again, tmp_path / "served again", storage, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    for name, array in exported_weights(tmp_path / "served again").items():
        np.testing.assert_allclose(array, exported_weights(out)[name], atol=1e-6, err_msg=name)


def test_the_mean_with_an_exported_model_is_exported(run: RunFolder, tmp_path: Path) -> None:
    start, out = tmp_path / "start", tmp_path / "served"
    export_folder(run, start, Storage.FP32, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    before = exported_weights(start)
    save_file(tiny_davinci_weights(run.encoder_config["vocab_size"], seed=3), run.weights)
    export_folder(run, tmp_path / "trained", Storage.FP32, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    trained = exported_weights(tmp_path / "trained")
    arguments = ["davinci", str(run.path), "--out", str(out), "--storage", "fp32", "--mean-with", str(start)]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    for name, array in exported_weights(out).items():
        np.testing.assert_allclose(array, (before[name] + trained[name]) / 2, atol=1e-6, err_msg=name)
    assert not np.allclose(before["heads.davinci.text.0.weight"], trained["heads.davinci.text.0.weight"])


def test_models_of_other_shapes_have_no_mean(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "other")
    vocabulary = run.encoder_config["vocab_size"] + 1
    other.write_static(run.settings, {**run.encoder_config, "vocab_size": vocabulary}, run.tokenizer_file)
    save_file(tiny_davinci_weights(vocabulary), other.weights)
    arguments = ["davinci", str(run.path), "--out", str(tmp_path / "served"), "--mean-with", str(other.path)]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code != 0
    assert "not of one origin" in " ".join(told.output.split())
    assert not (tmp_path / "served").exists()


def test_a_folder_that_is_no_model_is_no_starting_point(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a training run"):
        starting_point(tmp_path / "nothing")
    out = tmp_path / "served"
    export_folder(run, out, Storage.INT8, "davinci-tiny", (2024, 10, 31), run.settings.budget)
    (out / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json: export the model again"):
        starting_point(out).model()


@pytest.mark.parametrize("budget", ["candidate=few", "words=9", "context=2"])
def test_the_command_refuses_a_budget_that_is_none(run: RunFolder, tmp_path: Path, budget: str) -> None:
    told = CliRunner().invoke(app, ["davinci", str(run.path), "--out", str(tmp_path / "served"), "--budget", budget])
    assert told.exit_code == 2
    assert "--budget" in told.output
    assert not (tmp_path / "served").exists()


def test_the_command_refuses_what_is_no_run(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["davinci", str(tmp_path), "--out", str(tmp_path / "served")])
    assert told.exit_code == 2
    assert "no run folder" in " ".join(told.output.replace("│", " ").split())
