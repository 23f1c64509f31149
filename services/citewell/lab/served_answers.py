"""Compares the lab with five running services: loads a set with the lab's vectors and asks through `Recommend`.

The retrieval order in every answer (`Item.stages`) is compared with the lab's ranking of the same query. The figures
of the service are those of the final order. The services encode only the queries.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.corpora.spilling import Corpus
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment
from citewell.lab.protocol import Mode, verify_rankings
from citewell.lab.retrieval import search
from citewell.lab.systems import System
from citewell.profiler.encoder import TextEncoder
from citewell.profiler.profiles import Vectors
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc, profile_query_pb2, profile_query_pb2_grpc
from citewell.recommender.v1 import recommender_pb2 as pb
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import Overloaded
from citewell.scholarly.contexts import normalise
from citewell.scholarly.publications import Publication
from citewell.types.messages import event_to_message
from citewell.types.v1 import paper_pb2, publication_pb2

OnProgress = Callable[[str, int, int], None]
SHOWN = 100
"""The number of items requested: the most that one answer can have."""
SAME_SCORE = 2e-3
"""Closer retrieval scores count as equal: the service encodes the query itself, in the precision of its CPU, and its
vector differs by about a thousandth from the one in the lab's cache."""
SAME_SECOND_SCORE = 0.2
"""The same for scores of the second phase. Their features are divided by their deviation over the list, of which a
thousandth in a cosine is some hundredths."""
_CHUNK, _CHUNK_BYTES = 256, 8 << 20
_SECONDS = 120.0
_COUNTED = 0.9
"""The share of papers that the word statistics must include; the service renews them after changes of a tenth."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The options of the requests."""

    strategy: str = "hybrid"
    """One of the contract's strategies, in lower case."""
    rerank: bool = True
    rerank_depth: int = 0
    """0: the service's default."""
    in_flight: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What the services answered to some queries."""

    queries: Rows
    papers: NDArray[np.int32]
    """[queries, SHOWN] rows of the papers in final order; -1 pads."""
    retrieved: NDArray[np.int32]
    """The same papers in the order of retrieval."""
    gold: NDArray[np.int64]
    """Rank of the cited paper, 0 where it is not among the items."""
    seconds: NDArray[np.float64]
    degraded: Counter[str] = field(default_factory=Counter)
    """The number of answers degraded for each reason; empty if there were none."""
    second_phase: str = ""
    """Hash of the second phase's model that ranked the answers; empty = none did."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the services' retrieval compares with the lab's."""

    queries: int
    identical: int
    """Queries with the same papers in the same order."""
    equivalent: int
    """Queries with the same order, except for papers whose scores are equal (`SAME_SCORE`, `SAME_SECOND_SCORE`)."""
    largest: float
    """The largest difference between the lab scores of the two papers at one rank, over all queries."""


async def load(
    experiment: Experiment,
    folder: Path,
    state: Path,
    profiler: str,
    encoder: TextEncoder,
    on_progress: OnProgress,
) -> tuple[int, int]:
    """Loads papers and train contexts with their vectors; returns the numbers of accepted and refused publications.

    `folder` is the data set, `state` a file for the progress. Returns when everything is searchable.
    """
    corpus = Corpus(folder, state, "train")
    if not corpus.ready:
        corpus.spill(lambda: None)
    bare = not any(experiment.data.papers.abstracts)
    total = corpus.counts()[0]
    taken = refused = 0
    async with open_channel(profiler) as channel:
        queries = profile_query_pb2_grpc.ProfileQueryServiceStub(channel)
        info = await _call(queries.Info, profile_query_pb2.InfoRequest())
        if info.encoder.hash != encoder.model_hash:
            raise ValueError(
                f"the profiler encodes with {info.encoder.name} ({info.encoder.hash}), the lab's vectors are of "
                f"{encoder.model_id} ({encoder.model_hash})"
            )
        ledger, vectors = ledger_pb2_grpc.LedgerServiceStub(channel), _Vectors(experiment, encoder)

        for chunk in _chunks(corpus, vectors, bare=bare):

            async def requests(events: list[publication_pb2.PublicationEvent] = chunk) -> AsyncIterator[Any]:
                yield ledger_pb2.LoadPublicationsRequest(events=events)

            answer = await _call(ledger.LoadPublications, requests())
            taken += answer.applied + answer.duplicates + answer.superseded
            refused += len(answer.rejected)
            on_progress("papers loaded", taken, total)
        await _until_searchable(ledger, on_progress)
        await _until_counted(queries, taken)
    corpus.close(forget=True)
    return taken, refused


def _chunks(corpus: Corpus, vectors: _Vectors, *, bare: bool) -> Iterator[list[publication_pb2.PublicationEvent]]:
    chunk: list[publication_pb2.PublicationEvent] = []
    size = 0
    for loadable in corpus.publications():
        publication = loadable.event.body
        if not isinstance(publication, Publication):
            continue
        if bare:
            publication = replace(publication, abstract="")
        message = event_to_message(replace(loadable.event, body=publication))
        message.publication.vectors.extend(vectors.of(publication))
        if chunk and (len(chunk) == _CHUNK or size + message.ByteSize() > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += message.ByteSize()
    if chunk:
        yield chunk


class _Vectors:
    """The experiment's vectors in the form in which publishers supply them."""

    def __init__(self, experiment: Experiment, encoder: TextEncoder) -> None:
        data = experiment.data
        self._vectors, self._encoder = experiment.vectors, encoder
        self._paper = {identifier: row for row, identifier in enumerate(data.papers.ids)}
        self._context = {normalise(text): row for row, text in enumerate(data.contexts.texts)}

    def of(self, publication: Publication) -> Iterator[publication_pb2.TextVector]:
        """The vectors of the paper and of every context in it."""
        own = self._encoder.paper_text(publication.title, publication.abstract)
        yield self._message(own, self._vectors.papers[self._paper[publication.paper_id]])
        for text in sorted({text for said in publication.contexts().values() for text in said}):
            yield self._message(text, self._vectors.contexts[self._context[text]])

    def _message(self, text: str, vector: Vectors) -> publication_pb2.TextVector:
        return publication_pb2.TextVector(
            text_hash=hashlib.sha256(text.encode()).digest(),
            model_hash=self._encoder.model_hash,
            values=vector.astype("<f4").tobytes(),
        )


async def _until_searchable(ledger: Any, on_progress: OnProgress) -> None:
    most = 0
    while True:
        views = (await _call(ledger.ListViews, ledger_pb2.ListViewsRequest())).views
        left = sum(view.marks + view.encode_marks for view in views if view.serving)
        most = max(most, left)
        on_progress("becoming searchable", most - left, most)
        if not left and any(view.serving for view in views):
            return
        await asyncio.sleep(0.5)


async def _until_counted(queries: Any, papers: int) -> None:
    """Waits until the word statistics, computed in the background, cover these papers; the lab's cover all of them."""
    ends = time.monotonic() + _SECONDS
    counted = 0
    while counted < _COUNTED * papers:
        if time.monotonic() > ends:
            raise ValueError(f"the profiler's word statistics are of {counted} papers, {papers} were loaded")
        await asyncio.sleep(0.5)
        counted = (await _call(queries.Info, profile_query_pb2.InfoRequest())).statistics_papers


async def ask(
    experiment: Experiment, recommender: str, queries: Rows, asking: Asking, on_progress: OnProgress
) -> Answers:
    """Sends every query through `Recommend` and keeps both orders of its answer."""
    row_of = {identifier: row for row, identifier in enumerate(experiment.data.papers.ids)}
    papers, retrieved = (np.full((len(queries), SHOWN), -1, np.int32) for _ in range(2))
    seconds = np.zeros(len(queries))
    degraded: Counter[str] = Counter()
    models: set[str] = set()
    done = 0
    async with open_channel(recommender) as channel:
        stub = RecommenderServiceStub(channel)
        free = asyncio.Semaphore(asking.in_flight)

        async def one(number: int, query: int) -> None:
            nonlocal done
            async with free:
                request = request_of(experiment, query, asking)
                began = time.perf_counter()
                answer: pb.RecommendResponse = await _call(stub.Recommend, request)
                seconds[number] = time.perf_counter() - began
            items = [(_retrieval_rank(item), row_of[item.paper.id]) for item in answer.items]
            papers[number, : len(items)] = [row for _, row in items]
            retrieved[number, : len(items)] = [row for _, row in sorted(items)]
            degraded.update({each.reason for each in answer.degraded})
            models.add(answer.snapshot.second_phase_hash)
            done += 1
            on_progress("queries asked", done, len(queries))

        async with asyncio.TaskGroup() as group:
            for number, query in enumerate(queries.tolist()):
                group.create_task(one(number, query))
    verify_rankings(experiment.data, replace(experiment.task, queries=queries), papers)
    if len(models) > 1:
        raise ValueError(f"the answers come from different second phases: {sorted(models)}")
    found = papers == experiment.data.contexts.cited[queries][:, None]
    gold = np.where(found.any(axis=1), found.argmax(axis=1) + 1, 0).astype(np.int64)
    return Answers(queries, papers, retrieved, gold, seconds, degraded, "".join(models))


async def time_defaults(
    experiment: Experiment, recommender: str, queries: Rows, in_flight: int, on_progress: OnProgress
) -> NDArray[np.float64]:
    """Seconds of each query, with default options except for the filter, and `in_flight` calls at a time."""
    seconds = np.zeros(len(queries))
    async with open_channel(recommender) as channel:
        stub = RecommenderServiceStub(channel)
        waiting = iter(enumerate(queries.tolist()))

        async def work() -> None:
            for number, query in waiting:
                request = request_of(experiment, query, Asking())
                request.options.CopyFrom(pb.Options(filter=request.options.filter))
                began = time.perf_counter()
                await _call(stub.Recommend, request)
                seconds[number] = time.perf_counter() - began
                on_progress(f"queries timed, {in_flight} in flight", number + 1, len(queries))

        await asyncio.gather(*(work() for _ in range(in_flight)))
    return seconds


def request_of(experiment: Experiment, query: int, asking: Asking) -> pb.RecommendRequest:
    """The query as a writer would send it, with the protocol's dates and barred papers as its filter."""
    data = experiment.data
    citing = int(data.contexts.citing[query])
    day = datetime.date.fromordinal(int(data.contexts.first_day[query]))
    barred = np.flatnonzero(~experiment.task.candidates)
    return pb.RecommendRequest(
        query=pb.Query(
            context=data.contexts.texts[query], title=data.papers.titles[citing], abstract=data.papers.abstracts[citing]
        ),
        options=pb.Options(
            top_k=SHOWN,
            filter=paper_pb2.SearchFilter(
                published_before=paper_pb2.PartialDate(year=day.year, month=day.month, day=day.day),
                excluded_ids=[data.papers.ids[int(row)] for row in barred],
            ),
            evidence_per_item=0,
            strategy=pb.Strategy.Value(f"STRATEGY_{asking.strategy.upper()}"),
            rerank=asking.rerank,
            rerank_depth=asking.rerank_depth,
        ),
    )


def agreement(experiment: Experiment, system: System, answers: Answers) -> Agreement:
    """Compares the retrieval order of the answers with the lab's ranking by `system`."""
    if experiment.task.mode is Mode.TRANSDUCTIVE:
        raise ValueError("services always answer with papers older than the query: name an inductive mode")
    task = replace(experiment.task, queries=answers.queries)
    same_score = SAME_SECOND_SCORE if answers.second_phase else SAME_SCORE
    # Twice as deep, so that papers just beyond the last item have a score to compare.
    lab = search(system, experiment.data, task, 2 * SHOWN, experiment.order)
    identical = equivalent = 0
    largest = 0.0
    for ours, scores, theirs in zip(lab.papers, lab.scores, answers.retrieved, strict=True):
        theirs = theirs[theirs >= 0]
        score_of = dict(zip(ours.tolist(), scores.tolist(), strict=True))
        same = len(theirs) == min(SHOWN, int((ours >= 0).sum())) and bool((ours[: len(theirs)] == theirs).all())
        identical += same
        apart = [
            abs(score_of.get(int(paper), -np.inf) - float(score))
            for paper, score in zip(theirs, scores[: len(theirs)], strict=True)
        ]
        difference = max(apart, default=np.inf)
        equivalent += same or difference < same_score
        largest = max(largest, 0.0 if same else difference)
    return Agreement(len(answers.queries), identical, equivalent, largest)


def _retrieval_rank(item: pb.Item) -> int:
    """The rank before the reranker."""
    ranks = [stage.rank for stage in item.stages if stage.stage not in ("rerank", "joined")]
    return ranks[-1] if ranks else item.rank


async def _call(method: Any, request: Any) -> Any:
    with deadlines.within(_SECONDS):
        while True:
            try:
                return await invoke(method, request, "served")
            except Overloaded as error:  # more queries at a time than the service takes: come again when it says
                deadlines.budget("served")
                await asyncio.sleep(error.retry_after_seconds)
