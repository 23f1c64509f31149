"""The index as paper search and evidence search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc
import numpy as np

from citewell.index.v1 import index_pb2 as messages
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.recommender.ports import (
    MATCHED_TERMS,
    Evidence,
    EvidenceCall,
    Field,
    FoundSpan,
    Hit,
    Hits,
    SearchCall,
    SecondPhase,
    SpanCall,
    Spans,
    Vector,
)
from citewell.runtime.channels import invoke
from citewell.scholarly.papers import Paper
from citewell.scholarly.spans import Span
from citewell.types.messages import (
    date_from_message,
    date_to_message,
    filter_to_message,
    lexical_query_to_message,
    paper_from_message,
    second_phase_query_to_message,
    terms_from_message,
    terms_to_message,
)
from citewell.types.v1 import paper_pb2

_FIELDS = {
    Field.PROFILE: messages.SEARCH_FIELD_PROFILE,
    Field.CONTENT: messages.SEARCH_FIELD_CONTENT,
    Field.HYBRID: messages.SEARCH_FIELD_HYBRID,
}


class IndexClient:
    """A PaperSearch and an EvidenceSearch over gRPC.

    Calls that every answer needs wait for a connection, so that a restart of the index costs time and no answer.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = IndexServiceStub(channel)

    async def search(self, call: SearchCall, seconds: float) -> Hits:
        """The best admitted papers by the field."""
        request = messages.SearchRequest(
            field=_FIELDS[call.field],
            vector=call.vector,
            limit=call.limit,
            filter=filter_to_message(call.filter),
            view=paper_pb2.PAPER_VIEW_FULL if call.full else paper_pb2.PAPER_VIEW_BASIC,
            exact=call.exact,
            index_view=call.view,
            model_hash=call.model_hash,
        )
        if call.field is Field.HYBRID and call.lexical is not None:
            request.lexical.CopyFrom(lexical_query_to_message(call.lexical))
            request.matched_terms = MATCHED_TERMS
            if call.second is not None:
                request.second_phase.CopyFrom(second_phase_query_to_message(call.second))
        answer: messages.SearchResponse = await invoke(
            self._stub.Search, request, "search", at_most=seconds, wait_for_ready=True
        )
        hits = tuple(
            Hit(
                paper_from_message(found.paper),
                found.score,
                found.profile_score if call.field is Field.HYBRID else found.score,
                found.lexical_score,
                terms_from_message(found.matched),
                _second_phase(found.second_phase) if found.HasField("second_phase") else None,
            )
            for found in answer.papers
        )
        return Hits(hits, answer.exact, answer.index_view, answer.second_phase_hash)

    async def get(self, paper_ids: Sequence[str], full: bool, seconds: float) -> Mapping[str, Paper]:
        """Those of the papers that can be answers."""
        view = paper_pb2.PAPER_VIEW_FULL if full else paper_pb2.PAPER_VIEW_BASIC
        request = messages.GetPapersRequest(ids=paper_ids, view=view)
        answer: messages.GetPapersResponse = await invoke(
            self._stub.GetPapers, request, "lookup", at_most=seconds, wait_for_ready=True
        )
        return {paper.id: paper_from_message(paper) for paper in answer.papers}

    async def contents(self, paper_ids: Sequence[str], view: str, seconds: float) -> Mapping[str, Vector]:
        """Content vectors of the stored ones among the papers."""
        request = messages.ReadPointsRequest(index_view=view, paper_ids=paper_ids)
        answer: messages.ReadPointsResponse = await invoke(self._stub.ReadPoints, request, "diversity", at_most=seconds)
        return {point.paper.id: np.frombuffer(point.content, "<f4").tolist() for point in answer.papers}

    async def evidence(self, call: EvidenceCall, seconds: float) -> Mapping[str, tuple[Evidence, ...]]:
        """For each paper, the citing contexts nearest to the query's."""
        request = messages.SearchEvidenceRequest(
            cited_ids=call.cited_ids,
            vector=call.vector,
            limit_per_paper=call.limit_per_paper,
            published_before=date_to_message(call.published_before),
            excluded_citing_ids=call.excluded_citing_ids,
            index_view=call.view,
        )
        answer: messages.SearchEvidenceResponse = await invoke(
            self._stub.SearchEvidence, request, "evidence", at_most=seconds
        )
        return {
            paper.cited_id: tuple(
                Evidence(
                    one.citing_id,
                    one.text,
                    date_from_message(one.published, "published"),
                    one.score,
                    Span(one.span_offset, one.span_length),
                )
                for one in paper.evidence
            )
            for paper in answer.papers
        }

    async def spans(self, call: SpanCall, seconds: float) -> Spans:
        """The spans that fit the query by words, each with the papers cited for it."""
        request = messages.SearchSpansRequest(
            terms=terms_to_message(call.terms),
            vector=call.vector,
            prefetch=call.prefetch,
            published_before=date_to_message(call.filter.published_before),
            excluded_citing_ids=call.excluded_citing_ids,
            filter=filter_to_message(call.filter),
            index_view=call.view,
            model_hash=call.model_hash,
        )
        answer: messages.SearchSpansResponse = await invoke(
            self._stub.SearchSpans, request, "search", at_most=seconds, wait_for_ready=True
        )
        return Spans(tuple(map(_found_span, answer.spans)), answer.mean_span_length, answer.index_view)


def _second_phase(message: messages.SecondPhaseScore) -> SecondPhase:
    shares = tuple((share.name, share.value) for share in message.contributions)
    return SecondPhase(message.score, message.first_rank, shares)


def _found_span(message: messages.FoundSpan) -> FoundSpan:
    papers = {
        one.paper_id: Evidence(
            one.citing_id,
            one.text,
            date_from_message(one.published, "published"),
            span=Span(one.span_offset, one.span_length),
            support=one.support,
        )
        for one in message.papers
    }
    return FoundSpan(message.text, message.okapi_rank, message.plus_rank, message.cosine, papers)
