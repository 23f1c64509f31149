"""The profiler as a query encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from citewell.profiler.v1 import profile_query_pb2 as messages
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.recommender.ports import MATCHED_TERMS, Embedding, ProfileScore, ScoreCall
from citewell.runtime.channels import invoke
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.queries import Query
from citewell.types.messages import (
    date_to_message,
    lexical_query_from_message,
    lexical_query_to_message,
    position_from_message,
    second_phase_query_from_message,
    terms_from_message,
)


class ProfilerClient:
    """A QueryEncoder over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ProfileQueryServiceStub(channel)

    async def embed(self, query: Query, as_of: PartialDate, seconds: float) -> Embedding:
        """v_q, the weighted words, and the view to search with them."""
        request = messages.EmbedQueryRequest(context=query.context, title=query.title, abstract=query.abstract)
        if as_of.known:
            request.as_of.CopyFrom(date_to_message(as_of))
        answer: messages.EmbedQueryResponse = await invoke(
            self._stub.EmbedQuery, request, "embed", at_most=seconds, wait_for_ready=True
        )
        lexical = lexical_query_from_message(answer.lexical) if answer.HasField("lexical") else None
        second = None
        if lexical is not None and answer.HasField("second_phase"):
            second = second_phase_query_from_message(answer.second_phase, len(lexical.terms))
        return Embedding(
            query=answer.query_vector,
            context=answer.context_vector,
            model_hash=answer.model_hash,
            settings_hash=answer.settings_hash,
            context_cut=answer.context_cut,
            view_incomplete=answer.view_incomplete,
            searchable=tuple(map(position_from_message, answer.searchable)),
            view=answer.view,
            lexical=lexical,
            statistics=answer.statistics,
            hybrid=answer.hybrid_vector or None,
            query_map=answer.query_map,
            term_weights=answer.term_weights,
            window_encoder=answer.window_encoder,
            second=second,
        )

    async def score(self, call: ScoreCall, seconds: float) -> Mapping[str, ProfileScore]:
        """Profile scores of the known ones among the papers, as of the date if there is one."""
        request = messages.ScoreProfilesRequest(paper_ids=call.paper_ids, query_vector=call.vector)
        if call.as_of.known:
            request.as_of.CopyFrom(date_to_message(call.as_of))
        if call.lexical is not None:
            request.lexical.CopyFrom(lexical_query_to_message(call.lexical))
            request.matched_terms = MATCHED_TERMS
        answer: messages.ScoreProfilesResponse = await invoke(
            self._stub.ScoreProfiles, request, "score", at_most=seconds, wait_for_ready=True
        )
        return {
            one.paper_id: ProfileScore(
                one.score,
                one.in_degree,
                one.content_share,
                one.context_share,
                one.citing_share,
                one.lexical_score,
                one.hybrid_score,
                terms_from_message(one.matched),
            )
            for one in answer.scores
        }

    async def references(
        self, paper_ids: Sequence[str], as_of: PartialDate, seconds: float
    ) -> Mapping[str, tuple[str, ...]]:
        """What each known one of the papers cites."""
        request = messages.ListReferencesRequest(paper_ids=paper_ids)
        if as_of.known:
            request.as_of.CopyFrom(date_to_message(as_of))
        answer: messages.ListReferencesResponse = await invoke(
            self._stub.ListReferences, request, "references", at_most=seconds
        )
        return {paper.paper_id: tuple(paper.cited_ids) for paper in answer.papers}

    async def info(self) -> messages.InfoResponse:
        """The encoder, its weights, and the limits of as-of answers."""
        answer: messages.InfoResponse = await invoke(self._stub.Info, messages.InfoRequest(), "profiler")
        return answer
