"""Rows of the rivals' tables are kept by what they depend on, and laid out beside the published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.lab.experiment import Encoding
from citewell.lab.global_strategy import DraftBm25
from citewell.lab.ilciter import CONDITIONAL
from citewell.lab.rivals.measuring import Bench
from citewell.lab.rivals.page import wins
from citewell.lab.rivals.rows import Measured, Row, RowStore
from citewell.lab.rivals.tables import RETRIEVED, by_depth, evidence_tables, lay_out, whole_lists_table
from tests.rivals_world import small_experiment


def row(name: str, ranks: list[int], **more: list[int]) -> Row:
    values = {key.replace("_", "@"): np.array(found, np.float64) for key, found in more.items()}
    measured = Measured({"rank": np.array(ranks, np.float64), **values}, 2.5, 40.0)
    return Row(name, name.upper(), measured, 1.25, {"commit": "abc"})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    experiment = small_experiment(tmp_path, split="test")
    return Bench(experiment, Encoding(), RowStore(tmp_path / "rows", "abc"), None, 30, 1, lambda *_: None)


def test_a_kept_row_is_not_measured_again_unless_something_it_depends_on_changed(tmp_path: Path) -> None:
    store, measured = RowStore(tmp_path, "abc"), 0

    def measure() -> Measured:
        nonlocal measured
        measured += 1
        return Measured.of_ranks(np.array([1, 0, 2]), 3.0)

    for settings in ({"rate": 1}, {"rate": 1}, {"rate": 2}):
        found = store.row("rival", "Rival", settings, 4.0, measure)
        assert found.mean("MRR") == 50
        assert found.mean("R@1") == pytest.approx(100 / 3)
        assert (found.measured.retrieval_ms, found.train_minutes, found.about["commit"]) == (3.0, 4.0, "abc")
    assert measured == 2


def test_a_table_has_rivals_ours_times_and_the_published_figures() -> None:
    rows = {"hatten": row("hatten", [1, 2]), "profiler": row("profiler", [1, 1])}
    head, lines = lay_out(RETRIEVED, rows, "acl")
    assert [line[0] for line in lines] == ["HATTEN", "PROFILER"]
    found = dict(zip(head, lines[0], strict=True))
    assert (found["MRR"], found["R@10"], found["training CPU min"]) == ("75.0", "100.0", "1.2")
    assert (found["retrieval ms"], found["rerank ms"]) == ("2.5", "40")
    assert found["published, ACL-200: MRR, R@10, R@50, R@300"] == "21.1 / 40.3 / 65.4 / 87.0"
    assert lay_out(RETRIEVED, rows, "neurips25")[0][-1].startswith("published, FullTextPeerRead")


def test_figures_by_depth_leave_out_depths_that_were_not_reranked() -> None:
    rows = {"a>b": row("a", [3, 1], rank_10=[1, 0], rank_50=[1, 2])}
    head, lines = by_depth(rows, "MRR", lambda name: {50: 47.0}, (10, 50, 100))
    assert head == ("system", "MRR, k = 10", "MRR, k = 50", "MRR, k = 100", "published (k)")
    assert lines == [["A", "50.0", "75.0", "—", "47.0 (50)"]]


def test_the_page_tells_first_where_a_rival_wins(bench: Bench) -> None:
    count = len(bench.asked)
    better, worse = row("hatten", [1] * count), row("hatten", [40] * count)
    ours = row("profiler", [1 + at % 7 for at in range(count)])
    told = wins(bench, {"hatten": better, "profiler": ours})
    assert told.startswith("- **HATTEN** wins MRR +")
    told = wins(bench, {"hatten": worse, "profiler": ours})
    assert told.startswith("No rival wins")
    assert "falls short in MRR" in told
    cheap = replace(worse, measured=replace(worse.measured, retrieval_ms=0.5))
    told = wins(bench, {"hatten": cheap, "profiler": ours})
    assert told.startswith("- **HATTEN** wins in time: 0.5 CPU ms a query against 2.5 of the Profiler.")


def test_systems_are_measured_once_on_the_same_queries(bench: Bench) -> None:
    found = bench.retrieval("bm25")
    assert len(found.per_query("MRR")) == len(bench.asked)
    assert found.measured.retrieval_ms > 0
    kept = {path: path.stat().st_mtime_ns for path in bench.store.folder.iterdir()}
    again = replace(bench).retrieval("bm25")
    np.testing.assert_array_equal(again.per_query("MRR"), found.per_query("MRR"))
    assert kept == {path: path.stat().st_mtime_ns for path in bench.store.folder.iterdir()}


def test_ilciters_methods_stand_in_its_tables(bench: Bench) -> None:
    laid = evidence_tables(bench.evidence(20))
    assert [title.split(":")[0] for title in laid] == ["ilciter, Table 4", "ilciter, Table 5"]
    for head, lines in laid.values():
        assert lines[-1][0] == CONDITIONAL
        assert all(len(line) == len(head) for line in lines)
        assert 0 < float(lines[-1][1]) <= 100


def test_whole_reference_lists_stand_beside_citeomatics_figures(bench: Bench) -> None:
    found = bench.whole_list("bm25", "BM25", 5, lambda: DraftBm25("bm25", bench.experiment.data, None))
    head, lines = whole_lists_table({"bm25": found})
    told = dict(zip(head, lines[0], strict=True))
    precision, recall = float(told["P@20"]), float(told["R@20"])
    assert 0 < precision <= 100
    assert float(told["F1@20"]) == pytest.approx(2 * precision * recall / (precision + recall), abs=0.2)
    assert told["published: F1@20 / MRR"].startswith("11.9 / 42.5")
    assert len(found.per_query("MRR")) == 5
