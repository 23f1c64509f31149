"""Sweeps give the same ranks as profiles built one by one; breakdowns and mentions count correctly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citewell.lab.breakdowns import breakdowns, fairness_by_in_degree, fairness_by_year, in_degrees
from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.mentions import Found, mentions
from citewell.lab.metrics import means
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder, search
from citewell.lab.sweeps import SHOWN, sweep
from citewell.lab.systems import Profiler
from citewell.profiler.profiles import ProfileWeights, QueryWeights
from tests.lab_sets import invented, vectors_of, write_lines


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    data = read_dataset(write_lines(tmp_path_factory.mktemp("set"), *invented(96)))
    vectors = vectors_of(data)
    task = make_task(data, "test", Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def test_the_sweep_is_the_profiler_at_every_setting(experiment: Experiment) -> None:
    made = sweep(experiment, lambda done, total: None, gammas=(0.4, 1.0), alphas=(0.0, 0.8, 2.0), betas=(0.0, 0.3))
    seen = set()
    for g, gamma in enumerate(made.gammas):
        for a, alpha in enumerate(made.alphas):
            for b, beta in enumerate(made.betas):
                system = Profiler(
                    "p",
                    experiment.data,
                    experiment.vectors,
                    experiment.table,
                    ProfileWeights(alpha, beta),
                    QueryWeights(gamma, 1 - gamma),
                )
                expected = means(search(system, experiment.data, experiment.task, 5, experiment.order).gold, SHOWN)
                for metric in SHOWN:
                    assert made.metrics[metric][g, a, b] == pytest.approx(expected[metric], abs=0.02), (metric, alpha)
                seen.add(round(expected["MRR"], 3))
    assert len(seen) > 6
    alpha, beta, gamma = made.best("MRR")
    assert made.at("MRR", alpha, beta, gamma) == made.metrics["MRR"].max()


def test_every_query_is_in_one_group_of_each_breakdown(experiment: Experiment) -> None:
    data, queries = experiment.data, experiment.task.queries
    gold_ranks = np.arange(1, len(queries) + 1)
    made = breakdowns(data, experiment.known, queries)
    assert [b.title.split()[0] for b in made] == ["in-degree", "age", "context", "works", "source"]
    for breakdown in made:
        rows = breakdown.rows(gold_ranks)
        assert sum(count for _, count, _ in rows) == len(queries)
        weighted = sum(count * values["MRR"] for _, count, values in rows) / len(queries)
        assert weighted == pytest.approx(means(gold_ranks)["MRR"])
    degrees = in_degrees(data, experiment.known)[data.contexts.cited[queries]]
    assert made[0].groups == ("0", "1", "2–5", "6–20", "over 20")
    assert {group: count for group, count, _ in made[0].rows(gold_ranks)}["2–5"] == (
        (degrees > 1) & (degrees < 6)
    ).sum()


def test_shares_of_the_top_add_up_and_follow_the_list(experiment: Experiment) -> None:
    data, queries = experiment.data, experiment.task.queries
    gold = data.contexts.cited[queries][:, None].astype(np.int32)
    only_gold = np.concatenate([gold, np.full((len(queries), 4), -1, np.int32)], axis=1)
    favourite = np.full((len(queries), 10), int(np.argmax(in_degrees(data, experiment.known))), np.int32)
    for shares in (
        fairness_by_in_degree(data, experiment.known, queries, {"gold": only_gold, "favourite": favourite}),
        fairness_by_year(data, queries, {"gold": only_gold, "favourite": favourite}),
    ):
        assert sum(share.gold for share in shares) == pytest.approx(100)
        for share in shares:
            assert share.recommended["gold"] == pytest.approx(share.gold)
        assert max(share.recommended["favourite"] for share in shares) == pytest.approx(100)
    by_degree = fairness_by_in_degree(data, experiment.known, queries, {"favourite": favourite})
    assert by_degree[-1].recommended["favourite"] == pytest.approx(100)


def test_a_name_is_found_where_it_stands(tmp_path: Path) -> None:
    papers = [
        {"id": "own", "title": "NameX: a parser", "abstract": "", "year": 2000},
        {"id": "said", "title": "A better parser", "abstract": "", "year": 2000},
        {"id": "train", "title": "Citing", "abstract": "", "year": 2001},
        {"id": "test", "title": "Asking", "abstract": "", "year": 2002},
        *({"id": f"other{n}", "title": "Words", "abstract": "", "year": 2000} for n in range(1000)),
    ]
    said = [("train", "said", "We parse with NameY TARGETCIT."), ("train", "own", "We parse TARGETCIT.")]
    asked = [
        ("test", "own", "We use NameX TARGETCIT."),
        ("test", "said", "We use nameY TARGETCIT and OTHERCIT."),
        ("test", "own", "We use NameZ TARGETCIT."),
        ("test", "said", "We parse sentences TARGETCIT."),
        ("test", "said", "NameY " + "and so on " * 10 + "TARGETCIT."),
    ]
    contexts = [
        {"id": f"c{n}", "citing_id": citing, "cited_id": cited, "text": text}
        for n, (citing, cited, text) in enumerate([*said, *asked])
    ]
    data = read_dataset(write_lines(tmp_path, papers, contexts, {"train": ["train"], "test": ["test"]}))
    task = make_task(data, "test", Mode.INDUCTIVE)
    found = mentions(data, citations(data, task.knowledge), task.queries).found
    assert found.tolist() == [Found.OWN_TEXT, Found.ONLY_CONTEXTS, Found.NOWHERE, Found.NO_NAME, Found.NO_NAME]
