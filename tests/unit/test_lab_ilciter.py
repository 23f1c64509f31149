"""ILCiteR's store and rankings, by hand on an invented set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.ilciter import CONDITIONAL, METHODS, SpanStore, evaluate, query_span
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from tests.lab_sets import vectors_of, write_lines


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    papers = [{"id": f"old{n}", "title": f"work {n}", "abstract": "", "year": 2000 + n} for n in range(4)]
    papers += [{"id": name, "title": name, "abstract": "", "year": 2010} for name in ("t1", "t2", "t3")]
    papers += [{"id": name, "title": name, "abstract": "", "year": 2012} for name in ("v1", "e1")]
    said = [
        ("t1", "old0", "We parse with spanning trees TARGETCIT."),
        ("t2", "old0", "We parse with spanning trees TARGETCIT."),
        ("t3", "old1", "We parse with spanning trees TARGETCIT."),
        ("t1", "old2", "Speech is segmented first TARGETCIT."),
        ("t2", "old3", "Trees OTHERCIT, or a parser made of spanning forests TARGETCIT, are older."),
        ("v1", "old2", "Speech is segmented TARGETCIT."),
        ("e1", "old1", "Others parse by spanning trees TARGETCIT."),
    ]
    contexts = [
        {"id": f"c{n}", "citing_id": citing, "cited_id": cited, "text": text, "year": 2012 if citing < "t" else 2010}
        for n, (citing, cited, text) in enumerate(said)
    ]
    splits = {"train": ["t1", "t2", "t3"], "validation": ["v1"], "test": ["e1"]}
    data = read_dataset(write_lines(Path(tmp_path_factory.mktemp("spans")), papers, contexts, splits))
    task = make_task(data, "test", Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    vectors = vectors_of(data)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def test_a_span_is_kept_once_with_how_often_each_paper_is_cited_for_it(experiment: Experiment) -> None:
    store = SpanStore(experiment)
    assert store.texts == [
        "Speech is segmented first",
        "We parse with spanning trees",
        "a parser made of spanning forests",
    ]
    assert store.support.toarray()[1].tolist()[:4] == [2, 1, 0, 0]
    assert store.papers[:5].tolist() == [True, True, True, True, False]
    assert query_span(experiment.data, int(experiment.task.queries[0])) == "Others parse by spanning trees"


def test_papers_come_by_their_best_span_then_by_support(experiment: Experiment) -> None:
    store = SpanStore(experiment)
    query = int(experiment.task.queries[0])
    (eligible,) = experiment.task.eligible(experiment.data, experiment.task.queries[:1])
    rankings = store.rank(query, eligible)
    assert [store.texts[span] for span in rankings.candidates] == store.texts[1:], "speech shares no word"
    for method in METHODS:
        order = store.order(rankings, method, eligible)
        assert order.tolist() == [0, 1, 3], method
    eligible[0] = False
    assert store.order(rankings, CONDITIONAL, eligible).tolist() == [1, 3]


def test_the_rank_of_the_cited_paper_is_found(experiment: Experiment) -> None:
    found = evaluate(experiment, SpanStore(experiment), experiment.task.queries, lambda *_: None)
    assert {method: ranks.tolist() for method, ranks in found.items()} == {method: [2] for method in METHODS}


def test_a_query_is_long_by_the_store_it_is_asked_of(experiment: Experiment) -> None:
    store = SpanStore(experiment)
    (eligible,) = experiment.task.eligible(experiment.data, experiment.task.queries[:1])
    query = int(experiment.task.queries[0])
    assert not store.rank(query, eligible).long
    store.mean_length = 1.0
    assert store.rank(query, eligible).long
    assert np.array_equal(store.rank(query, eligible).candidates, [1, 2])
