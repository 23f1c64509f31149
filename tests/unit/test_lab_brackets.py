"""The right answers of a place: every paper that its bracket cites."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.davinci.lists import CandidateLists, NegativeSampling
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder, search
from citewell.profiler.profiles import Vectors

CONTEXTS = [
    ("q", "a", "Trees TARGETCIT are known OTHERCIT."),
    ("q", "b", "Trees  TARGETCIT are known OTHERCIT."),  # the same place, with other white space
    ("q", "c", "Trees OTHERCIT are known TARGETCIT."),  # another place of the same sentence
    ("q", "c", "Forests (TARGETCIT; OTHERCIT) too."),
    ("q", "d", "Forests (OTHERCIT; TARGETCIT) too."),
    ("other", "d", "Trees TARGETCIT are known OTHERCIT."),  # another paper's sentence
]
"""Citing paper, cited paper, text."""


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    names = {"a": 2000, "b": 2000, "c": 2000, "d": 2000, "q": 2010, "other": 2010, "old": 2001}
    papers = [{"id": name, "title": name, "abstract": "", "year": year} for name, year in names.items()]
    contexts = [
        {"id": f"c{at}", "citing_id": citing, "cited_id": cited, "text": text, "year": 2010}
        for at, (citing, cited, text) in enumerate(CONTEXTS)
    ]
    contexts.append({"id": "c9", "citing_id": "old", "cited_id": "a", "text": "Known TARGETCIT.", "year": 2001})
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in papers))
    (tmp_path / "contexts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in contexts))
    splits = {"train": ["old"], "validation": ["q", "other"], "test": []}
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    return read_dataset(tmp_path)


def test_a_bracket_is_one_place_of_one_paper(data: Dataset) -> None:
    brackets = Brackets(data)
    names = [sorted(data.papers.ids[int(paper)] for paper in brackets.answers(row)) for row in range(len(CONTEXTS))]
    assert names == [["a", "b"], ["a", "b"], ["c"], ["c", "d"], ["c", "d"], ["d"]]
    assert brackets.sizes(np.arange(6)).tolist() == [2, 2, 1, 2, 2, 1]


class _Fixed:
    """Ranks b before a before the others, for every query."""

    name = "fixed"

    def __init__(self, data: Dataset) -> None:
        score = {"b": 3.0, "a": 2.0}
        self._scores = np.array([score.get(name, 1.0) for name in data.papers.ids], np.float32)

    def scores(self, queries: np.ndarray) -> Vectors:
        return np.tile(self._scores, (len(queries), 1))


def test_a_search_tells_the_rank_of_the_first_right_answer(data: Dataset) -> None:
    task = make_task(data, "validation", Mode.INDUCTIVE)
    brackets = Brackets(data)
    found = search(_Fixed(data), data, task, 5, IdOrder(data), brackets=brackets)
    by_text = dict(zip(task.queries.tolist(), zip(found.gold, found.bracket, strict=True), strict=True))
    assert by_text[0] == (2, 1)  # its own paper is second, the bracket's other one first
    assert by_text[1] == (1, 1)
    assert by_text[2] == (3, 3)
    alone = search(_Fixed(data), data, task, 5, IdOrder(data))
    assert alone.bracket.tolist() == alone.gold.tolist()


def test_lists_rank_the_first_right_answer_of_an_order() -> None:
    lists = CandidateLists(
        np.array([0, 1], np.int32),
        np.array([[5, 6, 7, 8], [1, 2, 3, -1]], np.int32),
        np.zeros((2, 4), np.float32),
        np.array([8, 9], np.int32),
        np.zeros(2, np.float32),
    )
    right = lists.right(lambda query: np.array([[6, 8], [9]][query], np.int32))
    assert lists.ranks(right=right).tolist() == [2, 0]
    order = np.array([[4.0, 1.0, 3.0, 5.0], [1.0, 1.0, 1.0, 9.0]], np.float32)
    assert lists.ranks(order, right).tolist() == [1, 0]
    assert lists.ranks(order).tolist() == [1, 0]
    order[0, 3] = 0.5
    assert lists.ranks(order, right).tolist() == [3, 0]


def test_no_negative_is_a_right_answer() -> None:
    lists = CandidateLists(
        np.array([0], np.int32),
        np.arange(8, dtype=np.int32)[None, :],
        np.zeros((1, 8), np.float32),
        np.array([3], np.int32),
        np.zeros(1, np.float32),
    )
    answers = np.array([1, 3, 6], np.int32)
    for seed in range(30):
        sampling = NegativeSampling(4, hard_share=0.5 * (seed % 2))
        drawn = sampling.draw(lists, 0, np.random.default_rng(seed), answers)
        assert len(drawn) == 4
        assert not set(drawn.tolist()) & {1, 3, 6}
