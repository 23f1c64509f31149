"""The index as paper search and evidence search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc
import numpy as np

from citewell.index.v1 import index_pb2 as messages
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.recommender.ports import Evidence, EvidenceCall, Hit, Hits, SearchCall, Vector
from citewell.runtime.channels import invoke
from citewell.scholarly.papers import Paper
from citewell.types.messages import date_from_message, date_to_message, filter_to_message, paper_from_message
from citewell.types.v1 import paper_pb2


class IndexClient:
    """A PaperSearch and an EvidenceSearch over gRPC.

    Calls that every answer needs wait for a connection, so that a restart of the index costs time and no answer.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = IndexServiceStub(channel)

    async def search(self, call: SearchCall, seconds: float) -> Hits:
        """The nearest admitted papers by profile, or by content."""
        request = messages.SearchRequest(
            field=messages.SEARCH_FIELD_CONTENT if call.by_content else messages.SEARCH_FIELD_PROFILE,
            vector=call.vector,
            limit=call.limit,
            filter=filter_to_message(call.filter),
            view=paper_pb2.PAPER_VIEW_FULL if call.full else paper_pb2.PAPER_VIEW_BASIC,
            exact=call.exact,
            index_view=call.view,
            model_hash=call.model_hash,
        )
        answer: messages.SearchResponse = await invoke(
            self._stub.Search, request, "search", at_most=seconds, wait_for_ready=True
        )
        hits = tuple(Hit(paper_from_message(found.paper), found.score) for found in answer.papers)
        return Hits(hits, answer.exact, answer.index_view)

    async def get(self, paper_id: str, seconds: float) -> Paper | None:
        """The paper, if it can be an answer."""
        request = messages.GetPapersRequest(ids=[paper_id], view=paper_pb2.PAPER_VIEW_FULL)
        answer: messages.GetPapersResponse = await invoke(
            self._stub.GetPapers, request, "lookup", at_most=seconds, wait_for_ready=True
        )
        return paper_from_message(answer.papers[0]) if answer.papers else None

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
                Evidence(one.citing_id, one.text, date_from_message(one.published, "published"), one.score)
                for one in paper.evidence
            )
            for paper in answer.papers
        }
