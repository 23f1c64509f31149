"""What a load test asks: mixes of interactive queries, batches, drafts and publications."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.types.v1 import publication_pb2

QUERIES_IN_BATCH = 8
PLACES_IN_DRAFT = 4

Call = Callable[[], Awaitable[None]]
"""Sends one request and reads the whole answer; raises AioRpcError."""

MIXES: Mapping[str, Mapping[str, float]] = {
    "retrieval": {"retrieval": 1.0},
    "reranked": {"reranked": 1.0},
    "mixed": {"reranked": 0.55, "retrieval": 0.25, "batch": 0.05, "manuscript": 0.05, "publish": 0.10},
}
"""Shares of the kinds of requests in each scenario."""


@dataclass(frozen=True, slots=True)
class Due:
    """A request of a scenario."""

    kind: str
    call: Call


class Scenario:
    """Draws requests of a mix without end. The same seed draws the same requests."""

    def __init__(
        self,
        mix: str,
        queries: Sequence[messages.Query],
        recommender: grpc.aio.Channel,
        ingestion: grpc.aio.Channel | None,
        deadline: float,
    ) -> None:
        """`ingestion` is needed for mixes with publications only."""
        self._mix, self._deadline = MIXES[mix], deadline
        if "publish" in self._mix and ingestion is None:
            raise ValueError(f"the mix {mix!r} publishes papers, so it needs the address of the ingestion service")
        self._recommender = RecommenderServiceStub(recommender)
        self._ingestion = IngestionServiceStub(ingestion) if ingestion is not None else None
        self._queries = itertools.cycle(queries)
        self._draw = random.Random(7)
        self._published = itertools.count()

    def __iter__(self) -> Iterator[Due]:
        kinds, shares = list(self._mix), list(self._mix.values())
        while True:
            kind = self._draw.choices(kinds, shares)[0]
            yield Due(kind, getattr(self, f"_{kind}")())

    def _retrieval(self) -> Call:
        return self._recommend(rerank=False)

    def _reranked(self) -> Call:
        return self._recommend(rerank=True)

    def _recommend(self, *, rerank: bool) -> Call:
        request = messages.RecommendRequest(query=next(self._queries), options=messages.Options(rerank=rerank))

        async def call() -> None:
            await self._recommender.Recommend(request, timeout=self._deadline)

        return call

    def _batch(self) -> Call:
        options = messages.Options(rerank=False)
        request = messages.RecommendBatchRequest(
            requests=[
                messages.RecommendRequest(query=next(self._queries), options=options) for _ in range(QUERIES_IN_BATCH)
            ]
        )

        async def call() -> None:
            await self._recommender.RecommendBatch(request, timeout=4 * self._deadline)

        return call

    def _manuscript(self) -> Call:
        contexts = [next(self._queries).context for _ in range(PLACES_IN_DRAFT)]
        text = "# A draft\n\n" + "\n\n".join(context.replace("TARGETCIT", "[?]") for context in contexts)
        request = messages.RecommendManuscriptRequest(
            text=text, format=messages.MANUSCRIPT_FORMAT_MARKDOWN, options=messages.Options(rerank=False)
        )

        async def call() -> None:
            async for _ in self._recommender.RecommendManuscript(request, timeout=4 * self._deadline):
                pass

        return call

    def _publish(self) -> Call:
        query, number = next(self._queries), next(self._published)
        told = publication_pb2.Publication(
            paper_id=f"load-{number}", revision=1, title=f"{query.title} {number}", abstract=query.abstract
        )
        request = ingestion_pb2.PublishRequest(publication=told, request_id=f"load-{number}")

        async def call() -> None:
            assert self._ingestion is not None
            await self._ingestion.Publish(request, timeout=self._deadline)

        return call
