"""`citewell evaluate served`: five processes are loaded with the lab's vectors, and must answer as the lab does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

from citewell.commands.stack import Stack, choose_ports
from citewell.index.second_phase_model import packaged_model
from citewell.lab import chosen
from citewell.lab.commands.evaluate import app
from citewell.lab.davinci.exported import ExportedModel
from citewell.lab.experiment import Encoding, prepare
from citewell.lab.protocol import Mode
from citewell.lab.served_answers import Asking, agreement, ask
from citewell.lab.signals import judge
from citewell.lab.systems_by_name import SYSTEMS
from citewell.reranker.settings import PACKAGED_MODEL
from tests.lab_sets import invented, write_lines

PAPERS = 96
DEPTH = 20
"""Candidates that the services rerank by default."""
SAME_JOINED = 0.3
"""Closer joined scores count as equal: those of the second phase differ by `SAME_SECOND_SCORE`, log-odds by bf16."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("served") / "invented", *invented(PAPERS))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), choose_ports(0))
    stack.start()
    try:
        stack.wait()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def told(stack: Stack, data: Path, cache: Path) -> Result:
    """The output of the command for services that it loads itself."""
    addresses = ["--recommender", stack.addresses["recommender"], "--profiler", stack.addresses["profiler"]]
    arguments = ["served", str(data), "--mode", "inductive", "--split", "test", "--cache", str(cache), *addresses]
    arguments += ["--strategy", "profile", "--in-flight", "2", "--timed", "4", "--json", str(cache / "served.json")]
    return CliRunner().invoke(app, arguments)


def test_what_is_served_is_what_the_lab_ranks(told: Result, cache: Path) -> None:
    assert told.exit_code == 0, told.output
    assert f"{PAPERS} publications loaded, 0 refused" in told.output
    stated = json.loads((cache / "served.json").read_text())
    assert stated["agreement"]["equivalent"] == stated["agreement"]["queries"] > 50
    assert stated["degraded"] == {}
    # The model changes the order. Equal values would mean that nothing was reranked.
    assert stated["figures"]["answers"]["MRR"] != stated["figures"]["retrieval"]["MRR"]
    assert stated["figures"]["answers"]["MRR"]["mean"] > 0
    assert set(stated["seconds"]) == {"asked", "1", "4"}


@pytest.mark.usefixtures("told")
async def test_hybrid_is_ranked_again_as_in_the_lab(stack: Stack, data: Path, cache: Path) -> None:
    experiment = prepare(data, "test", Mode.INDUCTIVE, Encoding(), cache, lambda *_: None)
    queries = experiment.task.queries[:30]
    answers = await ask(experiment, stack.addresses["recommender"], queries, Asking(rerank=False), lambda *_: None)
    assert answers.second_phase == packaged_model().hash
    assert agreement(experiment, SYSTEMS["second-phase"](experiment), answers).equivalent == 30
    assert agreement(experiment, experiment.hybrid, answers).equivalent < 30


@pytest.mark.usefixtures("told")
async def test_the_final_order_joins_the_reranker_and_the_second_phase_as_in_the_lab(
    stack: Stack, data: Path, cache: Path
) -> None:
    experiment = prepare(data, "test", Mode.INDUCTIVE, Encoding(), cache, lambda *_: None)
    queries = experiment.task.queries[:30]
    model, none = ExportedModel(PACKAGED_MODEL), np.empty(0, np.int64)
    judged = judge(experiment, queries, none, DEPTH, model, cache, lambda *_: None, "second-phase", chosen.JOINED)
    answers = await ask(experiment, stack.addresses["recommender"], queries, Asking(), lambda *_: None)

    def apart(scores: NDArray[np.float32]) -> int:
        """How many answers rank a paper where the lab has one of quite another score."""
        found = 0
        for papers, mine, served in zip(judged.lists.papers, scores, answers.papers[:, :DEPTH], strict=True):
            score_of = dict(zip(papers.tolist(), mine.tolist(), strict=True))
            theirs = np.array([score_of.get(paper, -np.inf) for paper in served.tolist() if paper >= 0])
            found += bool(np.abs(theirs - np.sort(mine[papers >= 0])[::-1]).max() > SAME_JOINED)
        return found

    assert apart(judged.final) == 0
    assert apart(judged.logits) > 10, "the lab ranks by the reranker alone: the comparison can fail"


@pytest.mark.usefixtures("told")
async def test_a_lab_that_ranks_otherwise_is_found_different(stack: Stack, data: Path, cache: Path) -> None:
    """Shows that the comparison can fail: the lab evaluates another system than the services run."""
    experiment = prepare(data, "test", Mode.INDUCTIVE, Encoding(), cache, lambda *_: None)
    queries = experiment.task.queries[:20]
    asking = Asking("profile", rerank=False)
    answers = await ask(experiment, stack.addresses["recommender"], queries, asking, lambda *_: None)
    assert agreement(experiment, experiment.profiler, answers).equivalent == 20
    assert agreement(experiment, experiment.content, answers).equivalent < 20
    swapped = answers.retrieved.copy()
    swapped[:, [0, -1]] = swapped[:, [-1, 0]]
    assert agreement(experiment, experiment.profiler, replace(answers, retrieved=swapped)).equivalent < 20
    assert np.array_equal(answers.papers, answers.retrieved)


def test_services_of_another_encoder_are_refused(stack: Stack, data: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "encoder"
    from tests.tiny_models import write_tiny_encoder

    write_tiny_encoder(other)
    addresses = ["--recommender", stack.addresses["recommender"], "--profiler", stack.addresses["profiler"]]
    arguments = ["served", str(data), "--mode", "inductive", "--cache", str(cache), "--encoder", str(other), *addresses]
    told = CliRunner().invoke(app, [*arguments, "--strategy", "profile"])
    assert told.exit_code == 1
    assert "the profiler encodes with" in told.output
