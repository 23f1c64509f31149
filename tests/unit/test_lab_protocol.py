"""The protocol accepts a clean set, and each kind of planted leak makes the run fail."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.protocol import Leak, Mode, Task, counts, make_task, training_task, verify_rankings, verify_task
from citewell.lab.retrieval import IdOrder, search
from citewell.profiler.profiles import Vectors
from tests.lab_sets import invented, write_lines, write_public


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return read_dataset(write_lines(tmp_path, *invented()))


class Constant:
    """Gives every paper the same score, so that only the protocol decides the result."""

    name = "constant"

    def __init__(self, papers: int) -> None:
        self._papers = papers

    def scores(self, queries: np.ndarray) -> Vectors:
        return np.zeros((len(queries), self._papers), np.float32)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_clean_run_returns_nothing_it_must_not(data: Dataset, mode: Mode, split: str) -> None:
    task = make_task(data, split, mode)
    ranking = search(Constant(len(data.papers)), data, task, 100, IdOrder(data))
    assert len(ranking.queries) > 0
    for query, row in zip(ranking.queries, ranking.papers, strict=True):
        returned = row[row >= 0]
        citing = data.contexts.citing[query]
        assert citing not in returned
        if mode is not Mode.TRANSDUCTIVE:
            assert (data.papers.year[returned] < data.papers.year[citing]).all()
            assert not np.isin(returned, data.split_papers[split]).any()
        else:
            assert len(returned) == len(data.papers) - 1


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    papers, contexts, splits = invented()
    test = [context for context in contexts if context["citing_id"] in splits["test"]]
    youngest = max(paper["year"] for paper in papers)
    test[0]["cited_id"] = next(p["id"] for p in papers if p["year"] == youngest and p["id"] != test[0]["citing_id"])
    late = next(context for context in test[1:] if context["year"] == youngest)
    late["cited_id"] = next(p["id"] for p in papers if p["id"] in splits["test"] and p["year"] < youngest)
    data = read_dataset(write_lines(tmp_path, papers, contexts, splits))
    task = make_task(data, "test", Mode.INDUCTIVE)
    stated = counts(data, task)
    already_late = sum(1 for c in test if c["cited_id"] in splits["test"] and c is not late)
    assert stated["left out: cites a paper that is not older"] == 1
    assert stated["left out: cites a paper under evaluation"] == already_late
    assert stated["test contexts asked"] == len(test) - 1 - already_late
    assert len(make_task(data, "test", Mode.TRANSDUCTIVE).queries) == len(test)


def _plant_candidate(data: Dataset, task: Task) -> Task:
    candidates = task.candidates.copy()
    candidates[data.split_papers["test"][0]] = True
    return dataclasses.replace(task, candidates=candidates)


def _plant_test_citation(data: Dataset, task: Task) -> Task:
    return dataclasses.replace(task, knowledge=np.append(task.knowledge, task.queries[0]))


def _plant_validation_citation(data: Dataset, task: Task) -> Task:
    return dataclasses.replace(task, knowledge=np.append(task.knowledge, data.contexts.of_split("validation")[0]))


def _plant_unanswerable(data: Dataset, task: Task) -> Task:
    candidates = task.candidates.copy()
    candidates[data.contexts.cited[task.queries[0]]] = False
    return dataclasses.replace(task, candidates=candidates)


def _plant_young_knowledge(data: Dataset, task: Task) -> Task:
    _set_known_date(data, task, int(data.contexts.first_day[task.queries].min()))
    return task


def _plant_undated_knowledge(data: Dataset, task: Task) -> Task:
    _set_known_date(data, task, 0)
    return task


def _set_known_date(data: Dataset, task: Task, last_day: int) -> None:
    """Dates a citing train paper that no query cites, so that no other rule is broken."""
    citing = np.setdiff1d(data.contexts.citing[task.knowledge], data.contexts.cited[task.queries])
    data.papers.last_day.setflags(write=True)
    data.papers.last_day[citing[0]] = last_day


def _plant_shared_paper(data: Dataset, task: Task) -> Task:
    data.split_papers["train"] = np.append(data.split_papers["train"], data.split_papers["test"][0])
    return task


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_plant_candidate, "D_eval ∩ C = ∅"),
        (_plant_test_citation, "train citations only"),
        (_plant_validation_citation, "train citations only"),
        (_plant_unanswerable, "answerable"),
        (_plant_young_knowledge, "date(known) < date(q)"),
        (_plant_undated_knowledge, "date(known) < date(q)"),
        (_plant_shared_paper, "disjoint splits"),
    ],
)
def test_a_planted_leak_makes_the_run_fail(data: Dataset, plant: Callable[[Dataset, Task], Task], rule: str) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    leaking = plant(data, task)
    with pytest.raises(Leak) as caught:
        search(Constant(len(data.papers)), data, leaking, 10, IdOrder(data))
    assert caught.value.rule == rule


def test_young_knowledge_has_a_mode_of_its_own(data: Dataset) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    _plant_young_knowledge(data, task)
    with pytest.raises(Leak, match="inductive-contemporary"):
        make_task(data, "test", Mode.INDUCTIVE)
    verify_task(data, make_task(data, "test", Mode.INDUCTIVE_CONTEMPORARY))


@pytest.mark.parametrize(
    ("mode", "rule"), [(Mode.INDUCTIVE, "date(d) < date(q)"), (Mode.TRANSDUCTIVE, "no self-citation")]
)
def test_a_system_that_returns_what_it_must_not_fails(data: Dataset, mode: Mode, rule: str) -> None:
    task = make_task(data, "test", mode)
    ranked = np.tile(data.contexts.cited[task.queries][:, None], (1, 3))
    verify_rankings(data, task, ranked)
    citing = data.contexts.citing[task.queries[0]]
    same_year = np.flatnonzero((data.papers.year == data.papers.year[citing]) & task.candidates)
    ranked[0, 2] = same_year[0] if mode is Mode.INDUCTIVE and len(same_year) else citing
    with pytest.raises(Leak) as caught:
        verify_rankings(data, task, ranked)
    assert caught.value.rule in (rule, "D_eval ∩ C = ∅")


def test_a_paper_of_unknown_date_is_never_a_candidate(tmp_path: Path) -> None:
    papers, contexts, splits = invented()
    cited = {context["cited_id"] for context in contexts if context["citing_id"] in splits["test"]}
    undated = next(paper for paper in papers if paper["id"] not in cited and paper["year"] < 2009)
    undated["year"] = None
    data = read_dataset(write_lines(tmp_path, papers, contexts, splits))
    row = papers.index(undated)
    task = make_task(data, "test", Mode.INDUCTIVE_CONTEMPORARY)
    assert not any(mask[row] for mask in task.eligible(data, task.queries))
    ranked = np.full((len(task.queries), 1), row)
    with pytest.raises(Leak, match="no known date"):
        verify_rankings(data, task, ranked)


def test_a_set_without_dates_has_one_mode_only(tmp_path: Path) -> None:
    papers, contexts, splits = invented()
    undated = [{key: value for key, value in paper.items() if key != "year"} for paper in papers]
    data = read_dataset(write_public(tmp_path, undated, contexts, splits))
    assert len(make_task(data, "test", Mode.TRANSDUCTIVE).queries) == len(data.contexts.of_split("test")) > 0
    with pytest.raises(ValueError, match="only transductive is possible"):
        make_task(data, "test", Mode.INDUCTIVE)


def test_train_queries_see_no_evaluated_paper(data: Dataset) -> None:
    task = training_task(data, Mode.INDUCTIVE)
    assert len(task.queries) == len(data.contexts.of_split("train"))
    for split in ("validation", "test"):
        assert not task.candidates[data.split_papers[split]].any()
    verify_task(data, task)


STATED = {
    "neurips25": {
        "papers": 88_000,
        "train citing papers": 1_202,
        "validation citing papers": 165,
        "test citing papers": 233,
        "train contexts": 30_650,
        "validation contexts": 4_148,
        "test contexts": 5_694,
        "test contexts asked": 5_513,
        "candidates of the latest query": 80_857,
    },
    "acl": {
        "papers": 38_221,
        "train citing papers": 4_487,
        "validation citing papers": 545,
        "test citing papers": 934,
        "train contexts": 25_121,
        "validation contexts": 3_098,
        "test contexts": 4_133,
        "test contexts asked": 4_032,
        "left out: cites a paper under evaluation": 37,
    },
}


@pytest.mark.data
@pytest.mark.skipif("CITEWELL_DATA" not in os.environ, reason="CITEWELL_DATA names no folder with the evaluation data")
@pytest.mark.parametrize("name", STATED)
def test_the_counts_are_those_the_data_sets_state(name: str) -> None:
    data = read_dataset(Path(os.environ["CITEWELL_DATA"]) / name)
    assert data.rejects == ()
    mode = Mode.INDUCTIVE if name == "acl" else Mode.INDUCTIVE_CONTEMPORARY
    assert STATED[name].items() <= counts(data, make_task(data, "test", mode)).items()
    if name == "neurips25":
        with pytest.raises(Leak, match="inductive-contemporary"):
            make_task(data, "test", Mode.INDUCTIVE)
