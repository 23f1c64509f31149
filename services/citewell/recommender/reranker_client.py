"""The reranker over gRPC."""

from __future__ import annotations

import grpc

from citewell.recommender.ports import RerankCall, Reranked, Reranking
from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime.channels import invoke


class RerankerClient:
    """A Reranker over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RerankerServiceStub(channel)

    async def rerank(self, call: RerankCall, seconds: float) -> Reranking:
        """The model's opinion of every candidate shown."""
        request = messages.RerankRequest(
            context=call.query.context,
            title=call.query.title,
            abstract=call.query.abstract,
            depth=len(call.candidates),
            allow_partial=call.allow_partial,
            candidates=[
                messages.RerankCandidate(
                    paper_id=candidate.paper.id,
                    revision=candidate.paper.revision,
                    title=candidate.paper.title,
                    abstract=candidate.paper.abstract,
                    rank=candidate.rank,
                    citing_contexts=call.contexts.get(candidate.paper.id, ()),
                )
                for candidate in call.candidates
            ],
        )
        answer: messages.RerankResponse = await invoke(self._stub.Rerank, request, "rerank", at_most=seconds)
        papers = {
            paper.paper_id: Reranked(
                paper.score if paper.HasField("score") else None,
                paper.prior,
                paper.text_gate if paper.HasField("text_gate") else None,
                paper.prior_gate if paper.HasField("prior_gate") else None,
            )
            for paper in answer.papers
        }
        return Reranking(papers, answer.model_hash, answer.partial_reason)

    async def citing_contexts(self, seconds: float) -> int:
        """How many citing contexts of each candidate the model reads."""
        answer: messages.InfoResponse = await invoke(
            self._stub.Info, messages.InfoRequest(), "reranker", at_most=seconds
        )
        return answer.citing_contexts

    async def info(self) -> messages.InfoResponse:
        """The model, and what its speed settings cost."""
        answer: messages.InfoResponse = await invoke(self._stub.Info, messages.InfoRequest(), "reranker", at_most=1.0)
        return answer
