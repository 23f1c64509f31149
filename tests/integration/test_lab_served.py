"""The lab's rankings are those of the real index service, and the same request gives the same ranking (P7)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.lab.dataset import read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.served import Served, compare_with_index
from citewell.runtime.channels import open_channel
from citewell.runtime.server import ServiceProcess
from tests.lab_sets import invented, vectors_of, write_lines
from tests.servers.in_process import until_serving


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    data = read_dataset(write_lines(tmp_path / "set", *invented(96)))
    task = make_task(data, "test", Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    vectors = vectors_of(data)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


async def _through_a_server(experiment: Experiment, folder: Path) -> Served:
    settings = IndexSettings(folder=folder, min_free_megabytes=0, port=0)
    process = ServiceProcess("index", settings, IndexServer(settings))
    running = asyncio.create_task(process.run())
    await asyncio.wait({running, asyncio.create_task(process.bound.wait())}, return_when=asyncio.FIRST_COMPLETED)
    address = f"localhost:{process.port}"
    channel = open_channel(address)
    try:
        await until_serving(channel, "citewell.index.v1.IndexService")
        return await compare_with_index(experiment, address, experiment.task.queries, 40, 20, lambda *_: None)
    finally:
        await channel.close()
        process.stop()
        await running


async def test_rankings_are_the_labs_and_repeat(experiment: Experiment, tmp_path: Path) -> None:
    found = await _through_a_server(experiment, tmp_path / "index")
    assert found.queries == len(experiment.task.queries) > 50
    assert found.equivalent == found.queries
    assert found.repeated == found.repeats == 20


async def test_a_lab_with_other_candidates_is_found_different(experiment: Experiment, tmp_path: Path) -> None:
    """The comparison can fail: the service is told other dates than the lab goes by."""
    papers = experiment.data.papers
    late = papers.year.copy()
    late[: len(late) // 2] = 2030
    asked = replace(experiment, data=replace(experiment.data, papers=replace(papers, year=late)))
    found = await _through_a_server(asked, tmp_path / "index")
    assert found.equivalent < found.queries
