"""`citewell train second-phase` end to end on an invented set: a model that learns, ships and ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.index.second_phase_model import SecondPhaseModel, configured_model
from citewell.lab.commands.train import app
from citewell.lab.experiment import Encoding, Experiment, prepare
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode
from citewell.lab.retrieval import search
from citewell.lab.second_phase.system import FirstPhase, SecondPhaseSystem
from tests.lab_sets import invented, write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("sets") / "invented", *invented(96))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(data: Path, cache: Path) -> SecondPhaseModel:
    out = cache / "model.json"
    arguments = ["second-phase", str(data), str(out), "--mode", "inductive", "--cache", str(cache), "--queries", "0"]
    arguments += ["--sparse-queries", "60", "--units", "3", "--without", "in_degree"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "epoch 40" in result.output  # few queries are read often
    made = configured_model(str(out))
    assert made is not None
    assert made.hash in result.output
    assert "in_degree" not in made.names
    card = json.loads(out.read_text())["card"]
    assert card["epochs"] == 40
    assert card["second phase"]["MRR"] > 0
    assert card["train queries"][0] > 50
    return made


@pytest.fixture(scope="module")
def experiment(data: Path, cache: Path) -> Experiment:
    return prepare(data, "validation", Mode.INDUCTIVE, Encoding(), cache, lambda *_: None)


def test_it_ranks_the_candidates_of_hybrid_again(model: SecondPhaseModel, experiment: Experiment) -> None:
    again = search(SecondPhaseSystem(experiment, model), experiment.data, experiment.task, 200, experiment.order)
    plain = search(experiment.hybrid, experiment.data, experiment.task, 200, experiment.order)
    assert any((ours != theirs).any() for ours, theirs in zip(again.papers, plain.papers, strict=True))
    for ours, theirs in zip(again.papers, plain.papers, strict=True):
        assert set(ours.tolist()) == set(theirs.tolist())


def test_a_train_query_knows_nothing_of_its_own_citations(experiment: Experiment) -> None:
    """Its candidates look as if its paper had cited nothing."""
    train = experiment.of_split("train")
    data = train.data
    query = train.task.queries[-1:]
    known = train.task.knowledge[data.contexts.citing[train.task.knowledge] != data.contexts.citing[query[0]]]
    assert len(known) < len(train.task.knowledge)
    citations_left = citations(data, known)
    others = replace(train, known=citations_left, table=profile_table(citations_left, train.vectors))
    ours, theirs = (next(first.lists(query, *first.scores(query))) for first in map(FirstPhase, (train, others)))
    place = {paper: at for at, paper in enumerate(theirs.papers.tolist())}
    at = [place[paper] for paper in ours.papers.tolist()]
    gold = data.contexts.cited[query[0]]
    assert gold in place
    for name in ("in_degree", "length", "title_terms"):
        assert np.allclose(getattr(ours.candidates, name), getattr(theirs.candidates, name)[at])
    assert np.allclose(ours.candidates.profiles, theirs.candidates.profiles[at], atol=1e-6)
    entries = [
        sorted(zip(listed.papers[words.candidate].tolist(), words.term.tolist(), words.count.tolist(), strict=True))
        for listed, words in ((one, one.candidates.words) for one in (ours, theirs))
    ]
    assert np.allclose(entries[0], entries[1])


def test_a_feature_that_does_not_exist_is_named(data: Path, cache: Path) -> None:
    arguments = ["second-phase", str(data), str(cache / "x.json"), "--mode", "inductive", "--without", "luck"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "luck" in result.output
