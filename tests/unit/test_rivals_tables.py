"""Rows of the rivals' tables are kept by what they depend on, and laid out beside the published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.index.second_phase_model import packaged_model
from citewell.lab.davinci.retrieve import training_data
from citewell.lab.davinci.train import train
from citewell.lab.experiment import Encoding
from citewell.lab.global_strategy import DraftBm25
from citewell.lab.ilciter import CONDITIONAL
from citewell.lab.reference_lists import reference_lists
from citewell.lab.rivals.measuring import Bench
from citewell.lab.rivals.page import against_global, against_heads, compare_new, same_candidates, wins
from citewell.lab.rivals.report import Asked, Rows, laid, missing, pipelines
from citewell.lab.rivals.rival import run_folder
from citewell.lab.rivals.rows import Measured, Row, RowStore
from citewell.lab.rivals.tables import (
    ABLATIONS,
    ON_THE_SAME,
    PREFETCHED,
    RETRIEVED,
    WHOLE_LISTS,
    by_depth,
    evidence_tables,
    lay_out,
    whole_lists_table,
)
from citewell.lab.rivals.timing import TIMED, retrieval_ms, whole_list_ms
from citewell.profiler.term_weights import find_term_weights
from tests.rivals_world import small_experiment
from tests.unit.davinci_world import settings, write_encoder


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

    for about in ({"rate": 1}, {"rate": 1}, {"rate": 2}):
        found = store.row("rival", "Rival", about, 4.0, measure)
        assert found.mean("MRR") == 50
        assert found.mean("R@1") == pytest.approx(100 / 3)
        assert (found.measured.retrieval_ms, found.train_minutes, found.about["commit"]) == (3.0, 4.0, "abc")
    assert measured == 2


def test_a_row_of_ours_depends_on_what_it_has_learned(bench: Bench) -> None:
    bench = replace(bench, experiment=replace(bench.experiment, second_phase=packaged_model()))
    learned = replace(bench, experiment=replace(bench.experiment, term_weights=find_term_weights("packaged")))
    for name, changes in (("hybrid", True), ("lexical-profile", True), ("second-phase", True), ("profiler", False)):
        assert (learned.depends(name) != bench.depends(name)) is changes, name
    assert "second phase" in bench.depends("second-phase")[0]


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


def test_the_page_tells_where_a_rival_wins_on_papers_that_nobody_cites(bench: Bench) -> None:
    data, known = bench.experiment.data, bench.experiment.known
    new = ~np.isin(data.contexts.cited[bench.asked], known.cited)
    if not new.any():  # cite nothing of the first asked paper
        gold = data.contexts.cited[bench.asked[0]]
        kept = known.cited != gold
        fewer = replace(
            known,
            contexts=known.contexts,
            starts=known.starts[kept],
            citing=known.citing[kept],
            cited=known.cited[kept],
        )
        bench = replace(bench, experiment=replace(bench.experiment, known=fewer))
        new = data.contexts.cited[bench.asked] == gold
    rival = row("bm25", [1 if fresh else 40 for fresh in new.tolist()])
    ours = row("profiler", [9 if fresh else 1 for fresh in new.tolist()])
    found = compare_new(bench, rival, ours)
    assert found is not None
    assert found.mean == pytest.approx(100 - 100 / 9)


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


class Recorder:
    """A system that notes what it was asked, as retriever and for whole lists."""

    name = "recorder"

    def __init__(self, papers: int) -> None:
        self.asked: list[NDArray[np.int64]] = []
        self._papers = papers

    def scores(self, queries: NDArray[np.int64]) -> NDArray[np.float32]:
        self.asked.append(queries)
        return np.tile(np.arange(self._papers, dtype=np.float32), (len(queries), 1))


def test_times_are_those_of_one_query_alone_for_every_kind_of_system(bench: Bench) -> None:
    recorder = Recorder(len(bench.experiment.data.papers))
    assert retrieval_ms(recorder, bench.experiment, bench.asked) > 0
    assert [len(each) for each in recorder.asked] == [1] * (1 + min(TIMED, len(bench.asked)))
    recorder.asked.clear()
    lists = reference_lists(bench.experiment.data, bench.experiment.task)
    assert whole_list_ms(recorder, bench.experiment, lists) > 0
    assert {len(each) for each in recorder.asked} == {1}


def test_the_time_of_the_encoder_is_added_for_what_a_system_has_encoded(bench: Bench) -> None:
    times = bench.encoder_times
    assert times.context > 0
    assert times.paper > 0
    assert bench.encoding_ms("profiler") == bench.encoding_ms("hybrid") == times.context + times.paper
    assert (bench.encoding_ms("dense"), bench.encoding_ms("global")) == (times.context, times.paper)
    assert bench.encoding_ms("bm25") == bench.encoding_ms("hatten") == 0


def asked(**changes: object) -> Asked:
    defaults = Asked(["bm25", "profiler"], [], 2, 12, 0, 3, None)
    return replace(defaults, **changes)  # type: ignore[arg-type]


def test_what_is_not_trained_is_told_in_one_line_with_the_command(bench: Bench, tmp_path: Path) -> None:
    bench = replace(bench, models=tmp_path / "models")
    told = missing(bench, asked())
    assert told[RETRIEVED.title] == ["HAtten is not trained: citewell train hatten DATA MODELS --mode inductive"]
    assert any("train scibert-reranker DATA" in line for line in told["profiler-davinci, Table 3: end to end"])
    assert [line.split(": ")[-1] for line in told[WHOLE_LISTS]] == [
        "citewell train nnselect DATA MODELS --mode inductive",
        "citewell train citeomatic DATA MODELS --mode inductive --set select=MODELS/SET/nnselect",
    ]
    assert "--heads a4" in told[ABLATIONS][0]
    trained = run_folder(tmp_path / "models", bench.experiment.data.name, "hatten")
    trained.mkdir(parents=True)
    (trained / "kept.pt").write_bytes(b"weights")
    assert missing(bench, asked())[RETRIEVED.title] == []


def test_pipelines_need_their_models_and_enrichment_counts_only_behind_the_first_hundred(
    bench: Bench, tmp_path: Path
) -> None:
    bench = replace(bench, models=tmp_path)
    assert pipelines(bench, ["hybrid", "bm25"], 100) == ["hybrid>davinci"]
    for name in ("hatten", "scibert-reranker"):
        folder = run_folder(tmp_path, bench.experiment.data.name, name)
        folder.mkdir(parents=True)
        (folder / "kept.pt").write_bytes(b"weights")
    retrievers = ["hatten", "hatten+references"]
    assert pipelines(bench, retrievers, 100) == ["hatten>scibert-reranker", "hatten>davinci"]
    assert "hatten+references>scibert-reranker" in pipelines(bench, retrievers, 300)


def test_a_table_of_rerankers_shows_every_system_on_the_reranked_queries() -> None:
    retrieved = {"hybrid": row("hybrid", [1, 1, 4, 4])}
    reranked = {"hybrid>davinci": row("davinci", [2, 2], rank_10=[2, 2])}
    tables = laid(Rows(retrieved, reranked, {}, None, None), "acl")
    assert [line[1] for line in tables[ON_THE_SAME.title][1]] == ["100.0", "50.0"]
    assert tables[PREFETCHED.title][1][0][1] == "62.5"


def test_davinci_is_compared_with_another_reranker_of_the_same_candidates(bench: Bench) -> None:
    count = len(bench.asked)
    rows = {
        "hybrid>davinci": row("ours", [1] * count),
        "hybrid>scibert-reranker": row("theirs", [2] * count),
        "hatten>scibert-reranker": row("elsewhere", [1] * count),
    }
    (line,) = same_candidates(bench, rows).splitlines()
    assert line.startswith("- **OURS** against **THEIRS**")
    assert "MRR +50.0 [+50.0, +50.0], R@10 +0.0" in line


def test_davinci_is_compared_with_every_other_head_of_its_run(bench: Bench) -> None:
    count = len(bench.asked)
    heads = {"rank:davinci": np.full(count, 1.0), "rank:a1": np.full(count, 2.0), "rank:a4+margin": np.full(count, 0.0)}
    row = Row("heads", "heads", Measured(heads, 2.5, 40.0), 0.0, {"commit": "abc"})
    first, second = against_heads(bench, row).splitlines()
    assert first.startswith(f"- **DAVINCI** against **A1: no prior** ({count} queries): MRR +50.0 [+50.0, +50.0], R@10")
    assert "A4: scalar gate+margin" in second
    assert "R@10 +100.0 [+100.0, +100.0]" in second
    assert against_heads(bench, None) == ""


def test_global_is_compared_with_each_other_system(bench: Bench) -> None:
    def of(share: float) -> Row:
        values = {name: np.full(4, share) for name in ("P@20", "R@20", "MRR")}
        return Row("x", f"with {share}", Measured(values, 3.0), 0.0, {"commit": "abc"})

    told = against_global({"global": of(0.5), "citeomatic": of(0.25)})
    assert told.startswith("- **with 0.5** against **with 0.25**: F1@20 +25.0 [+25.0, +25.0], MRR +25.0")
    assert against_global({"bm25": of(0.25)}) == ""


def test_every_head_of_a_run_stands_in_the_table_of_ablations(tmp_path: Path) -> None:
    experiment = small_experiment(tmp_path, split="test")
    encoder = write_encoder(tmp_path / "encoder")
    heads = ("davinci", "a1", "a4+margin")
    made = settings(encoder, heads=heads, candidates="profiler", depth=12, steps=2, validate_every=1)
    run = train(made, training_data(made, experiment, lambda *_: None), tmp_path / "run")
    bench = Bench(experiment, Encoding(), RowStore(tmp_path / "rows", "abc"), None, 6, 1, lambda *_: None)
    found = bench.heads(run.path, "profiler", 6, 12)
    tables = laid(Rows({}, {}, {}, None, found), "acl")
    head, lines = tables[ABLATIONS]
    assert [line[0] for line in lines] == ["DAVINCI", "A1: no prior", "A4: scalar gate+margin"]
    assert [line[-1] for line in lines] == ["50.3", "48.4", "45.2"]
    lists = bench.lists("profiler", 6, 12)
    inside = 100 * np.mean(lists.gold_position < 12)
    assert all(float(line[1]) <= inside for line in lines)
    assert head[1] == "MRR"
    assert ABLATIONS not in missing(bench, asked(ablations=run.path))
