"""The commands end to end on an invented set with the packaged encoder: figures, pages, regressions, and refusals."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from citewell.lab import measure
from citewell.lab.commands.evaluate import app
from citewell.lab.commands.train import app as train
from citewell.lab.experiment import Encoding
from citewell.lab.measure import EvaluationSet
from citewell.lab.protocol import Mode
from citewell.lab.report import report
from citewell.lab.repro import compare, repro
from citewell.lab.systems_by_name import SYSTEMS
from citewell.reranker.settings import PACKAGED_MODEL
from tests.lab_sets import invented, write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("sets") / "invented", *invented())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _run(data: Path, cache: Path, out: Path, *more: str) -> dict[str, dict[str, dict[str, float]]]:
    arguments = ["run", str(data), "--mode", "inductive", "--split", "test", "--cache", str(cache), "--json", str(out)]
    result = CliRunner().invoke(app, [*arguments, *more])
    assert result.exit_code == 0, result.output
    assert "test contexts asked" in result.output
    systems: dict[str, dict[str, dict[str, float]]] = json.loads(out.read_text())["systems"]
    return systems


def test_evaluate_gives_the_same_figures_again_without_encoding_again(data: Path, cache: Path, tmp_path: Path) -> None:
    first = _run(data, cache, tmp_path / "first.json")
    kept = sorted(path.name for path in cache.rglob("*.npy"))
    second = _run(data, cache, tmp_path / "second.json")
    assert set(first) == set(SYSTEMS)
    for system, figures in first.items():
        assert figures["MRR"] == second[system]["MRR"]
        assert figures["MRR"]["low"] <= figures["MRR"]["mean"] <= figures["MRR"]["high"]
    assert sorted(path.name for path in cache.rglob("*.npy")) == kept
    assert first["bm25-contexts"]["MRR"]["mean"] > first["bm25"]["MRR"]["mean"]  # aliases stand in contexts only


def test_evaluate_prints_for_eighty_columns_and_for_programs(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["run", str(data), "--mode", "inductive", "--split", "test", "--cache", str(cache)]
    names = ("profiler", "bm25-contexts", "lexical-profile")
    asked = [*arguments, *(part for name in names for part in ("--system", name))]
    printed = {
        output: CliRunner().invoke(app, [*asked, "-o", output]).stdout for output in ("text", "markdown", "csv", "json")
    }
    assert max(map(len, printed["text"].splitlines())) <= 80
    assert "…" not in printed["text"]
    for name in ("MRR", "NDCG@10", "R@10, bracket", "MRR − profiler", *names):
        assert name in printed["text"]
        assert name in printed["markdown"]
    figures = json.loads(printed["json"])["systems"]["profiler"]["MRR"]
    [row] = [
        row
        for row in csv.DictReader(io.StringIO(printed["csv"]))
        if (row["system"], row["metric"]) == ("profiler", "MRR")
    ]
    assert {name: float(row[name]) for name in ("mean", "low", "high")} == pytest.approx(
        {name: figures[name] for name in ("mean", "low", "high")}
    )
    assert f"{figures['mean']:.1f} [" in printed["markdown"]


def test_a_rerankers_figures_are_printed_for_eighty_columns_and_for_programs(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["rerank", str(PACKAGED_MODEL), str(data), "--mode", "inductive", "--cache", str(cache), "--queries", "3"]
    asked += ["--depth", "10", "--threads", "1"]
    printed = {
        output: CliRunner().invoke(app, [*asked, "-o", output]).stdout for output in ("text", "markdown", "csv", "json")
    }
    assert max(map(len, printed["text"].splitlines())) <= 80
    figures = [line.split() for line in printed["text"].splitlines() if "±" in line]
    assert len(figures) == 4, "two systems in two tables, each in one line"
    assert all(len([cell for cell in line if cell.startswith("±")]) == 5 for line in figures)
    assert "| davinci |" in printed["markdown"]
    rows = list(csv.DictReader(io.StringIO(printed["csv"])))
    found = {tuple(row[name] for name in ("system", "answer", "metric")): float(row["mean"]) for row in rows}
    assert len(found) == len(rows) == 20
    for row in json.loads(printed["json"]):
        assert found[row["system"], row["answer"], row["metric"]] == pytest.approx(row["mean"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--split", "train"], "'train' is no split to evaluate on"),
        (["rerank", "--split", "all"], "'all' is no split to evaluate on"),
        (["run", "--system", "best"], "'best' is no system"),
        (["run", "--against", "best"], "'best' is no system"),
        (["run", "--json", "."], ". is a folder"),
        (["run", "--json", "{folder}/file/figures.json"], "cannot be written"),
    ],
)
def test_a_wrong_option_is_named_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "file").touch()
    command, *more = (word.format(folder=tmp_path) for word in arguments)
    run = [str(PACKAGED_MODEL)] if command == "rerank" else []
    asked = [command, *run, str(tmp_path), "--mode", "inductive", "--cache", str(tmp_path), *more]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("command", ["second-phase", "term-weights", "query-map"])
def test_the_folder_of_a_result_is_made_before_the_training(tmp_path: Path, command: str) -> None:
    out = tmp_path / "new" / "folder" / "result.json"
    result = CliRunner().invoke(train, [command, str(tmp_path), str(out), "--mode", "inductive"])
    assert "holds neither papers.jsonl" in result.output
    assert out.parent.is_dir()


@pytest.mark.parametrize("run", ["nothing", "file"])
def test_a_folder_that_holds_no_run_is_named(tmp_path: Path, data: Path, run: str) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").touch()
    asked = ["rerank", str(tmp_path / run), str(data), "--mode", "inductive", "--cache", str(tmp_path)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert str(tmp_path / run) in "".join(result.output.split("\n"))


def test_a_leak_ends_the_command_without_figures(tmp_path: Path, cache: Path) -> None:
    papers, contexts, splits = invented()
    splits["train"].append(splits["test"][0])
    leaking = write_lines(tmp_path / "leaking", papers, contexts, splits)
    arguments = ["run", str(leaking), "--mode", "inductive", "--cache", str(cache), "--json", str(tmp_path / "x.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "disjoint splits" in result.output
    assert not (tmp_path / "x.json").exists()
    result = CliRunner().invoke(app, ["rerank", str(PACKAGED_MODEL), *arguments[1:6]])
    assert (result.exit_code, "disjoint splits" in result.output) == (2, True)


def test_the_report_writes_pages_and_pictures_and_no_text_of_the_set(
    data: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = (EvaluationSet("invented", Mode.INDUCTIVE, Encoding(), abstracts_leak=True),)
    monkeypatch.setattr(measure, "SETS", sets)
    report(data.parent, tmp_path, ["invented"], None, cache)
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    assert set(pages) == {"retrieval.md", "retrieval-sweeps.md", "retrieval-beyond.md"}
    for name, page in pages.items():
        assert str(tmp_path) not in page
        assert "method1" not in page, "text of the data set"
        for picture in re.findall(r"\]\((\S+\.svg)\)", page):
            assert (tmp_path / picture).stat().st_size > 1000, (name, picture)
            assert (tmp_path / picture).with_suffix(".png").exists()
    assert pages["retrieval.md"].count("HYBRID") > 5
    stated = json.loads((cache / "invented-test.json").read_text())
    assert f"{stated['systems']['profiler']['metrics']['MRR']['mean']:.1f} [" in pages["retrieval.md"]
    # Nothing is learned: the pages are those of the systems by hand.
    asked = ("--system", "profiler", "--system", "hybrid", "--window-encoder", "none", "--term-weights")
    bare, learned = (_run(data, cache, tmp_path / "run.json", *asked, name)["hybrid"] for name in ("none", "packaged"))
    assert bare["MRR"]["mean"] != learned["MRR"]["mean"]
    assert stated["systems"]["hybrid"]["metrics"]["MRR"]["mean"] == bare["MRR"]["mean"]
    assert "second-phase" not in stated["systems"]


def test_vectors_made_elsewhere_are_compared_before_they_are_taken(data: Path, cache: Path, tmp_path: Path) -> None:
    from citewell.profiler.encoder import load_encoder

    encoder = load_encoder(max_tokens=64)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for what in ("papers", "contexts"):
        with gzip.open(data / f"{what}.jsonl.gz", "rt") as stream:
            entries = [json.loads(line) for line in stream]
        made = encoder.encode(
            [encoder.paper_text(e["title"], e["abstract"]) if what == "papers" else e["text"] for e in entries]
        )
        np.save(foreign / f"invented.{what}.f16.npy", made.astype(np.float16))
        np.save(foreign / f"invented.{what}.norms.npy", np.ones(len(made), np.float32))
    arguments = ["--source", "made elsewhere", "--paper-tokens", "64", "--context-tokens", "64"]
    imported = CliRunner().invoke(
        app, ["import-vectors", str(data), str(foreign), *arguments, "--cache", str(tmp_path / "new")]
    )
    assert imported.exit_code == 0, imported.output
    same = _run(data, tmp_path / "new", tmp_path / "a.json", *arguments[2:])["profiler"]["MRR"]["mean"]
    assert len(list((tmp_path / "new").rglob("*.unit.npy"))) == 2, "nothing was encoded again"
    own = _run(data, cache, tmp_path / "b.json", *arguments[2:])["profiler"]["MRR"]["mean"]
    assert same == pytest.approx(own, abs=0.5)
    shuffled = np.load(foreign / "invented.papers.f16.npy")[::-1]
    np.save(foreign / "invented.papers.f16.npy", shuffled)
    refused = CliRunner().invoke(
        app, ["import-vectors", str(data), str(foreign), *arguments, "--cache", str(tmp_path / "other")]
    )
    assert refused.exit_code != 0
    assert "cosine" in refused.output


def test_a_figure_off_its_tolerance_fails_the_regression(data: Path, cache: Path, tmp_path: Path) -> None:
    import typer

    measured = _run(data, cache, tmp_path / "x.json", "--system", "profiler")["profiler"]["MRR"]["mean"]
    stated = {
        "data": "invented",
        "arguments": ["--mode", "inductive", "--split", "test", "--system", "profiler", "--cache", str(cache)],
        "expected": {"profiler": {"MRR": [round(measured, 2), 0.05]}},
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(stated))
    repro(data.parent, tmp_path)
    stated["expected"] = {"profiler": {"MRR": [measured + 1, 0.05]}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(stated))
    with pytest.raises(typer.Exit):
        repro(data.parent, tmp_path)


def test_the_verdict_names_the_figure() -> None:
    measured = {"systems": {"profiler": {"MRR": {"mean": 15.0}}}}
    assert compare({"profiler": {"MRR": (15.2, 0.3)}}, measured)[0][1]
    line, right = compare({"profiler": {"MRR": (15.2, 0.1)}}, measured)[0]
    assert not right
    assert "OFF profiler MRR: 15.00, expected 15.20 ± 0.1" in line
