"""An OTLP collector that keeps the spans it receives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span as it came out of a process."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    linked_traces: frozenset[str]
    start: int
    end: int


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """Listens on `port` while it is entered. Metrics are accepted and dropped."""

    spans: list[CollectedSpan] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    @property
    def settings(self) -> dict[str, str]:
        """The environment that makes the services export here, soon after a span has ended."""
        services = ("recommender", "profiler", "index", "reranker", "ingestion", "edge")
        told = {f"CITEWELL_{name.upper()}__OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}" for name in services}
        return {**told, "OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "60000"}

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        """The spans of a trace that have arrived, by their start."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start)

    def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            return metrics_service_pb2.ExportMetricsServiceResponse()
        for resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_collected(named["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


def _collected(service: str, span: trace_pb2.Span) -> CollectedSpan:
    return CollectedSpan(
        service,
        span.name,
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        frozenset(link.trace_id.hex() for link in span.links),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
