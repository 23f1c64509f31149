"""The profiler as a query encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from citewell.profiler.v1 import profile_query_pb2 as messages
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.recommender.ports import Embedding, ProfileScore, Vector
from citewell.runtime.channels import invoke
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.queries import Query
from citewell.types.messages import date_to_message, position_from_message


class ProfilerClient:
    """A QueryEncoder over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ProfileQueryServiceStub(channel)

    async def embed(self, query: Query, seconds: float) -> Embedding:
        """v_q, and which view to search with it."""
        request = messages.EmbedQueryRequest(context=query.context, title=query.title, abstract=query.abstract)
        answer: messages.EmbedQueryResponse = await invoke(
            self._stub.EmbedQuery, request, "embed", at_most=seconds, wait_for_ready=True
        )
        return Embedding(
            query=answer.query_vector,
            context=answer.context_vector,
            model_hash=answer.model_hash,
            settings_hash=answer.settings_hash,
            context_cut=answer.context_cut,
            view_incomplete=answer.view_incomplete,
            searchable=tuple(map(position_from_message, answer.searchable)),
            view=answer.view,
        )

    async def score(
        self, paper_ids: Sequence[str], vector: Vector, as_of: PartialDate, seconds: float
    ) -> Mapping[str, ProfileScore]:
        """Profile scores of the known ones among the papers, as of the date if there is one."""
        request = messages.ScoreProfilesRequest(paper_ids=paper_ids, query_vector=vector)
        if as_of.known:
            request.as_of.CopyFrom(date_to_message(as_of))
        answer: messages.ScoreProfilesResponse = await invoke(
            self._stub.ScoreProfiles, request, "score", at_most=seconds, wait_for_ready=True
        )
        return {
            one.paper_id: ProfileScore(one.score, one.in_degree, one.content_share, one.context_share, one.citing_share)
            for one in answer.scores
        }

    async def info(self) -> messages.InfoResponse:
        """The encoder, its weights, and the limits of as-of answers."""
        answer: messages.InfoResponse = await invoke(self._stub.Info, messages.InfoRequest(), "profiler")
        return answer
