"""The enricher: the first candidates keep their places, their neighbours come next, nothing else moves or leaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.retrieval import search
from citewell.lab.rivals.enricher import Enriched, EnricherSettings, Order, Relation
from citewell.profiler.profiles import Vectors
from tests.rivals_world import small_experiment

REFERENCES = EnricherSettings(depth=4)
COCITED = EnricherSettings(Relation.COCITED, Order.VOTES, depth=4)


class InSomeOrder:
    """The same order for every query."""

    name = "in some order"

    def __init__(self, papers: int) -> None:
        self._scores = np.random.default_rng(4).permutation(papers).astype(np.float32)

    def scores(self, queries: Rows) -> Vectors:
        return np.tile(self._scores, (len(queries), 1))


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return small_experiment(tmp_path)


def lists(experiment: Experiment, settings: EnricherSettings | None) -> np.ndarray:
    system = InSomeOrder(len(experiment.data.papers))
    asked = Enriched("enriched", system, experiment, settings) if settings else system
    return search(asked, experiment.data, experiment.task, 96, experiment.order).papers


def cited_by(experiment: Experiment, paper: int) -> set[int]:
    known = experiment.known
    return set(known.cited[known.citing == paper].tolist())


@pytest.mark.parametrize("settings", [REFERENCES, COCITED])
def test_the_first_candidates_stay_and_the_rest_keeps_its_order(
    experiment: Experiment, settings: EnricherSettings
) -> None:
    plain, enriched = lists(experiment, None), lists(experiment, settings)
    np.testing.assert_array_equal(enriched[:, :4], plain[:, :4])
    assert (enriched[:, 4:] != plain[:, 4:]).any()
    system = Enriched("enriched", InSomeOrder(len(experiment.data.papers)), experiment, settings)
    for before, after in zip(plain.tolist(), enriched.tolist(), strict=True):
        moved = set(system.neighbours(np.array(after[:4]), own=-1).tolist())
        assert sorted(after) == sorted(before)
        assert [paper for paper in after if paper not in moved] == [paper for paper in before if paper not in moved]
        assert not moved & set(after[:4])
        assert not moved & set(after[4 + len(moved) :])


def test_references_follow_in_the_order_in_which_the_list_leads_to_them(experiment: Experiment) -> None:
    led = 0
    for ranked in lists(experiment, REFERENCES):
        first, rest = ranked[:4].tolist(), ranked[4:].tolist()
        eligible = set(ranked.tolist())
        expected = [paper for candidate in first for paper in sorted(cited_by(experiment, candidate))]
        expected = [paper for paper in dict.fromkeys(expected) if paper not in first and paper in eligible]
        assert rest[: len(expected)] == expected
        led += len(expected)
    assert led


def test_papers_cited_together_with_more_candidates_come_first(experiment: Experiment) -> None:
    known = experiment.known
    system = Enriched("enriched", InSomeOrder(len(experiment.data.papers)), experiment, COCITED)
    first = np.unique(known.cited)[-4:].astype(np.int64)
    votes = {int(paper): 0 for paper in np.unique(known.cited)}
    for candidate in first.tolist():
        for citing in np.unique(known.citing[known.cited == candidate]).tolist():
            for paper in cited_by(experiment, citing):
                votes[paper] += 1
    found = system.neighbours(first, own=-1).tolist()
    assert found
    assert not set(found) & set(first.tolist())
    assert [votes[paper] for paper in found] == sorted((votes[paper] for paper in found), reverse=True)
    assert set(found) == {paper for paper, count in votes.items() if count} - set(first.tolist())


def test_the_citations_of_the_querys_own_paper_lead_nowhere(experiment: Experiment) -> None:
    known = experiment.known
    system = Enriched("enriched", InSomeOrder(len(experiment.data.papers)), experiment, COCITED)
    only = next(int(paper) for paper in np.unique(known.cited) if (known.cited == paper).sum() == 1)
    own = int(known.citing[known.cited == only][0])
    assert len(system.neighbours(np.array([only]), own=-1))
    assert not len(system.neighbours(np.array([only]), own))
