"""From a data set to a model that is served, by the commands alone: train, evaluate, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.cli import app
from citewell.index.second_phase_model import configured_model
from citewell.lab.davinci.exported import exported_weights
from citewell.lab.davinci.runs import RunFolder
from citewell.profiler.query_map import read_query_map
from citewell.profiler.term_weights import find_term_weights
from citewell.recommender.confidence import read_calibration
from citewell.reranker.model_files import read_model_folder
from citewell.reranker.pairs import TokenBudget
from citewell.reranker.settings import PACKAGED_MODEL
from citewell.scholarly.queries import Strategy
from tests.lab_sets import invented, write_lines
from tests.tiny_models import RERANKER_CONFIG, write_tiny_davinci
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

    grown = write_lines(tmp_path / "more" / "invented", *invented(60))
    refused = CliRunner().invoke(app, [str(each) for each in ("train", "davinci", grown, run, *protocol, "--steps", 8)])
    assert refused.exit_code == 1
    assert "was begun with papers 48, not 60" in refused.output

    out, ranks = tmp_path / "tables.md", tmp_path / "other.ranks"
    sample = (*protocol, "--split", "test", "--queries", 30, "--depth", 20)
    citewell("evaluate", "rerank", other, data, *sample, "--keep", ranks)
    citewell("evaluate", "rerank", run, data, *sample, "--against", ranks, "--out", out)
    tables = out.read_text()
    assert "| retrieval order |" in tables
    assert "| davinci against other |" in tables
    joined = ("--candidates", "second-phase", "--weight", 0.25, "--out", tmp_path / "joined.md")
    citewell("evaluate", "rerank", run, data, *sample, *joined)
    assert "| davinci + 0.25 · second phase |" in (tmp_path / "joined.md").read_text()
    scored = sorted((cache / "scores").iterdir())
    citewell("evaluate", "rerank", run, data, *sample, "--against", ranks, "--out", out)
    assert (out.read_text(), sorted((cache / "scores").iterdir())) == (tables, scored), "nothing is scored again"

    citewell("export", "davinci", run, "--out", tmp_path / "served")
    assert read_model_folder(tmp_path / "served").description.budget == RunFolder(run).settings.budget


def test_confidence_is_calibrated_for_the_recommender(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "invented", *invented(96))
    budget = TokenBudget(context=16, query_title=4, candidate=12, mentions=16, window=64)
    model = write_tiny_davinci(tmp_path / "model", budget=budget, mentions=2)
    vocabulary = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size()
    (model / "config.json").write_text(json.dumps({**RERANKER_CONFIG, "vocab_size": vocabulary}))
    out, page = tmp_path / "calibration.json", tmp_path / "confidence.md"
    arguments = ("--mode", "inductive", "--cache", tmp_path / "cache", "--model", model, "--depth", 5)
    citewell("train", "calibration", data, *arguments, "--queries", 40, "--out", out, "--page", page)
    calibration = read_calibration(out.read_text())
    assert [table.reranker for table in calibration.tables] == [read_model_folder(model).hash, ""]
    assert {table.strategy for table in calibration.tables} == {Strategy.HYBRID}
    (model / "davinci.json").write_text((model / "davinci.json").read_text().replace('"decay": 0.95', '"decay": 0.9'))
    citewell("train", "calibration", data, *arguments, "--queries", 40, "--out", out)
    both = [table.reranker for table in read_calibration(out.read_text()).tables]
    assert both == [read_model_folder(model).hash, "", calibration.tables[0].reranker], "other models keep theirs"
    told = page.read_text()
    assert told.count("expected calibration error") == 2
    assert "method1" not in told, "text of the data set"
    assert page.with_suffix(".svg").stat().st_size > 1000
    # An item that everything speaks for is surer than one that nothing speaks for.
    table = calibration.tables[1]
    likely = {"retrieval": 2.5, "lexical": 0.7, "second_margin": 2.0, "log_rank": 0.0}
    unlikely = {"retrieval": 0.3, "lexical": 0.0, "second_margin": -8.0, "log_rank": 1.6}
    assert table.confidence(likely) > table.confidence(unlikely)


def test_a_map_for_another_set_is_not_learned_from_the_first_ones_candidates(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "first", *invented())
    second = write_lines(tmp_path / "second", *invented(60, seed=8))
    for data, out in ((first, "map.npz"), (second, "map.npz"), (second, "fresh.npz")):
        arguments = ("--mode", "inductive", "--cache", tmp_path / "cache", "--epochs", 1, "--validation-queries", 5)
        citewell("train", "query-map", data, tmp_path / out, *arguments)
    again, fresh = (read_query_map(tmp_path / out) for out in ("map.npz", "fresh.npz"))
    assert again.digest == fresh.digest


def test_everything_is_retrained_by_one_command_which_goes_on_where_it_stopped(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "invented", *invented(96))
    budget = {"context": 12, "query_title": 6, "candidate": 10, "window": 60, "mentions": 8}
    settings = {**SETTINGS, "heads": ["davinci"], "budget": budget, "candidates": "second-phase", "joined": 0.5}
    (tmp_path / "first.json").write_text(json.dumps({**settings, "encoder": str(write_encoder(tmp_path / "enc2"))}))
    protocol = ("--mode", "inductive", "--cache", tmp_path / "cache")
    citewell("train", "davinci", data, tmp_path / "start", *protocol, "--settings", tmp_path / "first.json")
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "start_from": str(tmp_path / "start")}))
    out = tmp_path / "out"
    asked = ("train", "all", data, out, *protocol)
    asked += ("--settings", tmp_path / "settings.json", "--validation-queries", 12, "--test-queries", 12)
    asked += ("--second-queries", 60, "--window-steps", 1)
    out.mkdir()
    (out / "query-map.npz").write_bytes(b"PK")  # killed before while it was written
    first = citewell(*asked)
    assert "done before" not in first.output
    told = dict(line.split("=", 1) for line in (out / "settings.env").read_text().splitlines())
    report = json.loads((out / "report.json").read_text())
    assert (told["CITEWELL_PROFILER__QUERY_MAP"] == "none") is not report["query map"]["better"]
    best = report["term weights"]["best"]
    assert told["CITEWELL_PROFILER__TERM_WEIGHTS"] == {"trained": str(out / "term-weights.json")}.get(best, best)
    assert find_term_weights(str(out / "term-weights.json")) is not None
    rerankers = report["reranker"]
    best = max(("trained", "mean"), key=lambda name: rerankers[name]["MRR"])
    kept = {"CITEWELL_RERANKER__MODEL": str(out / {"trained": "reranker", "mean": "reranker-mean"}[best])}
    assert {name: told[name] for name in kept if name in told} == (kept if rerankers["better"] else {})
    assert rerankers["better"] is (rerankers[best]["MRR"] > rerankers["shipped"]["MRR"])
    started, trained = (RunFolder(folder).model().state_dict() for folder in (tmp_path / "start", out / "davinci"))
    name = "heads.davinci.text.0.weight"
    mean = exported_weights(out / "reranker-mean")[name]
    assert mean == pytest.approx(((started[name] + trained[name]) / 2).numpy(), abs=1e-6)
    assert mean != pytest.approx(trained[name].numpy(), abs=1e-6)
    assert report["second phase"].keys() >= {"HYBRID", "shipped", "trained"}
    window = report["window encoder"]
    folder = str(out / "window-encoder") if window["best"] == "trained" else window["best"]
    assert told["CITEWELL_PROFILER__WINDOW_ENCODER"] == folder
    assert (out / "window-encoder" / "model.onnx").exists()
    second = out / "second-phase.json" if report["second phase"]["better"] else None
    assert told["CITEWELL_INDEX__SECOND_PHASE"] == (str(second) if second else "packaged")
    calibration = read_calibration(Path(told["CITEWELL_RECOMMENDER__CONFIDENCE_FILE"]).read_text())
    order = configured_model(told["CITEWELL_INDEX__SECOND_PHASE"])
    assert order is not None
    assert [table.second_phase for table in calibration.tables] == [order.hash] * 2
    assert [table.second_phase_weight for table in calibration.tables] == [0.75, 0.0]
    reranker = Path(told.get("CITEWELL_RERANKER__MODEL", PACKAGED_MODEL))
    assert calibration.tables[0].reranker == read_model_folder(reranker).hash
    assert read_model_folder(out / "reranker").description.budget.mentions == 8

    # Killed before the confidence was written: the other steps are not repeated.
    learned = (out / "second-phase.json").stat().st_mtime_ns
    written = (out / "calibration.json").read_text()
    (out / "calibration.json").unlink()
    trained = (out / "davinci" / "model.safetensors").stat().st_mtime_ns
    again = citewell(*asked)
    assert again.output.count("done before") == 6
    assert (out / "calibration.json").read_text() == written
    assert (out / "davinci" / "model.safetensors").stat().st_mtime_ns == trained
    assert (out / "second-phase.json").stat().st_mtime_ns == learned

    # A step that is repeated makes what was learned after it out of date.
    (out / "second-phase.json").unlink()
    repeated = citewell(*asked)
    assert repeated.output.count("done before") == 3

    other = write_lines(tmp_path / "other", *invented(60))
    refused = CliRunner().invoke(app, [str(each) for each in ("train", "all", other, *asked[3:])])
    assert refused.exit_code == 1
    assert "was begun with data 'invented', not 'other'" in refused.output
