"""A client such as any other back end would use: plain gRPC with the shipped service config and deadlines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime.channels import SERVICE_CONFIG
from citewell.scholarly.publications import Publication, Retraction
from citewell.types.messages import publication_to_message
from citewell.types.v1 import publication_pb2

DEADLINE = 30.0


class Client:
    """Stubs of all five services."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        options = [("grpc.service_config", json.dumps(SERVICE_CONFIG)), ("grpc.max_reconnect_backoff_ms", 500)]
        self.channels = {name: grpc.insecure_channel(address, options) for name, address in addresses.items()}
        self.recommender = RecommenderServiceStub(self.channels["recommender"])
        self.index = IndexServiceStub(self.channels["index"])
        self.ingestion = IngestionServiceStub(self.channels["ingestion"])
        self.ledger = LedgerServiceStub(self.channels["profiler"])
        self.profiles = ProfileQueryServiceStub(self.channels["profiler"])
        self.reranker = RerankerServiceStub(self.channels["reranker"])

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()

    def recommend(
        self,
        query: messages.Query,
        options: messages.Options | None = None,
        *,
        seconds: float = DEADLINE,
        traceparent: str = "",
    ) -> messages.RecommendResponse:
        """The answer to one query."""
        request = messages.RecommendRequest(query=query, options=options or messages.Options())
        return self.recommender.Recommend(request, timeout=seconds, metadata=_trace(traceparent))

    def publish(
        self, body: Publication | Retraction, request_id: str = "", *, traceparent: str = ""
    ) -> ingestion_pb2.PublishResponse:
        """Publishes a publication or retraction. The event is in the log when this returns."""
        if isinstance(body, Publication):
            request = ingestion_pb2.PublishRequest(publication=publication_to_message(body), request_id=request_id)
        else:
            told = publication_pb2.Retraction(paper_id=body.paper_id, revision=body.revision, reason=body.reason)
            request = ingestion_pb2.PublishRequest(retraction=told, request_id=request_id)
        return self.ingestion.Publish(request, timeout=DEADLINE, metadata=_trace(traceparent))

    def settled(self, token: str, seconds: float = DEADLINE) -> ingestion_pb2.GetPublicationStatusResponse:
        """Waits until an event is searchable or dead, and returns its status."""
        request = ingestion_pb2.GetPublicationStatusRequest(token=token, wait=True)
        return self.ingestion.GetPublicationStatus(request, timeout=seconds, wait_for_ready=True)


def _trace(traceparent: str) -> list[tuple[str, str]]:
    """The metadata of a caller that has a trace of its own."""
    return [("traceparent", traceparent)] if traceparent else []


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error details of a failed call."""

    code: str
    reason: str
    field: str
    message: str
    infos: int

    @classmethod
    def of(cls, error: grpc.RpcError) -> Refusal:
        call: Any = error
        reason = field = ""
        infos = 0
        status = rpc_status.from_call(call)
        for detail in status.details if status else ():
            info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            if detail.Unpack(info):
                assert info.domain == "citewell"
                reason, infos = info.reason, infos + 1
            elif detail.Unpack(request):
                field = request.field_violations[0].field
        return cls(call.code().name, reason, field, call.details(), infos)
