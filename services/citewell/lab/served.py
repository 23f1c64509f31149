"""Compares the lab with a running index service that has the lab's profiles as a view and gets the same queries."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from citewell.index.v1 import index_pb2 as pb
from citewell.index.v1 import index_pb2_grpc
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.protocol import Mode
from citewell.lab.retrieval import search
from citewell.lab.systems import Profiler
from citewell.profiler.profiles import Vectors
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.types.v1 import paper_pb2

_BATCH = 500
SAME_SCORE = 2e-6
"""Closer cosines are equal in float32; two engines may order such papers differently."""


@dataclass(frozen=True, slots=True)
class Served:
    """How the service's rankings compare with the lab's."""

    queries: int
    depth: int
    identical: int
    """Queries with the same papers in the same order."""
    equivalent: int
    """Queries with the same order, except for papers whose cosines are equal in float32."""
    repeats: int
    """How often one request was sent again."""
    repeated: int
    """The number of repeated answers identical to the first, scores included."""
    milliseconds: float
    """Mean time of a search through the service."""


async def compare_with_index(
    experiment: Experiment,
    address: str,
    queries: Rows,
    depth: int,
    repeats: int,
    on_progress: Callable[[str, int, int], None],
) -> Served:
    """Fills a view of the index at `address`, compares it with the lab on some queries, and drops the view again."""
    if experiment.task.mode is Mode.TRANSDUCTIVE:
        raise ValueError("the index always answers with papers older than the query: name an inductive mode")
    view = f"lab-{time.time_ns():x}"
    profiler = experiment.profiler
    channel = open_channel(address)
    try:
        index = index_pb2_grpc.IndexServiceStub(channel)
        await _fill(index, view, experiment, profiler, on_progress)
        try:
            return await _compare(index, view, experiment, profiler, queries, depth, repeats, on_progress)
        finally:
            await _call(index.DropView, pb.DropViewRequest(index_view=view))
    finally:
        await channel.close()


async def _call(method: Any, request: Any) -> Any:
    with deadlines.within(120):
        return await invoke(method, request, "index")


async def _fill(
    index: Any, view: str, experiment: Experiment, profiler: Profiler, on_progress: Callable[[str, int, int], None]
) -> None:
    total, dimension = profiler.profiles.shape
    created = pb.CreateViewRequest(
        index_view=view, epoch=view, model_hash=view, dimension=dimension, settings_hash="lab"
    )
    await _call(index.CreateView, created)
    for start in range(0, total, _BATCH):
        points = list(_points(experiment, profiler.profiles, range(start, min(start + _BATCH, total))))
        await _call(index.Upsert, pb.UpsertRequest(index_view=view, epoch=view, papers=points))
        on_progress("papers written", start + len(points), total)


def _points(experiment: Experiment, profiles: Vectors, rows: range) -> Iterator[pb.PaperPoint]:
    papers = experiment.data.papers
    for row in rows:
        yield pb.PaperPoint(
            paper=paper_pb2.Paper(
                id=papers.ids[row],
                title=papers.titles[row],
                published=paper_pb2.PartialDate(year=int(papers.year[row])),
            ),
            profile=profiles[row].astype("<f4").tobytes(),
            content=profiles[row].astype("<f4").tobytes(),
            version=1,
        )


async def _compare(
    index: Any,
    view: str,
    experiment: Experiment,
    profiler: Profiler,
    queries: Rows,
    depth: int,
    repeats: int,
    on_progress: Callable[[str, int, int], None],
) -> Served:
    data = experiment.data
    lab = search(profiler, data, replace(experiment.task, queries=queries), depth, experiment.order)
    identical = equivalent = 0
    seconds = 0.0
    for number, (query, vector) in enumerate(zip(queries, profiler.query_vectors(queries), strict=True)):
        request = _request(view, experiment, int(query), vector, depth)
        began = time.perf_counter()
        answer = await _call(index.Search, request)
        seconds += time.perf_counter() - began
        expected = lab.papers[number][lab.papers[number] >= 0]
        found = [item.paper.id for item in answer.papers]
        same = found == [data.papers.ids[int(paper)] for paper in expected]
        identical += same
        scores = np.array([item.score for item in answer.papers])
        equivalent += same or (
            len(scores) == len(expected)
            and bool(np.abs(scores - lab.scores[number][: len(expected)]).max() < SAME_SCORE)
        )
        on_progress("queries compared", number + 1, len(queries))
    request = _request(view, experiment, int(queries[0]), profiler.query_vectors(queries[:1])[0], depth)
    first = await _call(index.Search, request)
    answers = [await _call(index.Search, request) for _ in range(repeats)]
    repeated = sum(answer == first for answer in answers)
    return Served(len(queries), depth, identical, equivalent, repeats, repeated, 1000 * seconds / max(len(queries), 1))


def _request(view: str, experiment: Experiment, query: int, vector: Vectors, depth: int) -> pb.SearchRequest:
    day = datetime.date.fromordinal(int(experiment.data.contexts.first_day[query]))
    barred = np.flatnonzero(~experiment.task.candidates)
    return pb.SearchRequest(
        field=pb.SEARCH_FIELD_PROFILE,
        vector=vector.tolist(),
        limit=depth,
        filter=paper_pb2.SearchFilter(
            published_before=paper_pb2.PartialDate(year=day.year, month=day.month, day=day.day),
            excluded_ids=[experiment.data.papers.ids[int(row)] for row in barred],
        ),
        exact=True,
        index_view=view,
        model_hash=view,
    )
