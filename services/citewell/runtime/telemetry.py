"""Logs, metrics and traces of a service: JSON lines, OpenTelemetry names, Prometheus, OTLP when configured."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager

import structlog
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from prometheus_client import start_http_server

from citewell import __version__
from citewell.runtime.settings import ServiceSettings, UnknownSetting

# Seconds: from a call on the same machine to one at the default deadline.
DURATION_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

logger = structlog.get_logger()
tracer = trace.get_tracer("citewell")
meter = metrics.get_meter("citewell")


class Telemetry:
    """Logs, metrics and traces of a process. Created once at start, flushed and shut down at the end."""

    def __init__(self, service: str, settings: ServiceSettings) -> None:
        configure_logging(service, settings.log_level)
        resource = Resource.create({"service.name": f"citewell-{service}", "service.version": __version__})
        readers: list[MetricReader] = []
        self._tracer_provider = TracerProvider(resource=resource)
        if settings.metrics_port:
            try:
                start_http_server(settings.metrics_port, addr=settings.host)
            except OSError as error:
                raise UnknownSetting(f"metrics_port {settings.metrics_port} cannot be used: {error}") from None
            readers.append(PrometheusMetricReader())
        if settings.otlp_endpoint:
            span_exporter, metric_exporter = _otlp_exporters(settings.otlp_endpoint)
            self._tracer_provider.add_span_processor(BatchSpanProcessor(span_exporter))
            readers.append(PeriodicExportingMetricReader(metric_exporter))
        durations = View(
            instrument_name="*.duration", aggregation=ExplicitBucketHistogramAggregation(boundaries=DURATION_BUCKETS)
        )
        self._meter_provider = MeterProvider(metric_readers=readers, resource=resource, views=[durations])
        trace.set_tracer_provider(self._tracer_provider)
        metrics.set_meter_provider(self._meter_provider)

    def shutdown(self) -> None:
        """Exports what is still buffered."""
        self._tracer_provider.shutdown()
        self._meter_provider.shutdown()


def _otlp_exporters(endpoint: str):  # type: ignore[no-untyped-def]  # the extra may not be installed
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise UnknownSetting(f"otlp_endpoint is {endpoint!r}, but the extra citewell[otlp] is not installed") from None
    return OTLPSpanExporter(endpoint=endpoint), OTLPMetricExporter(endpoint=endpoint)


def configure_logging(service: str, level: str) -> None:
    """JSON lines on standard error, each with its service, level, time, trace and span."""

    def add_trace(_: object, __: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            event["trace_id"] = format(span.trace_id, "032x")
            event["span_id"] = format(span.span_id, "016x")
        event["service"] = service
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            add_trace,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def trace_headers(current: trace.Span | None = None) -> dict[str, str]:
    """Headers that let the receiver continue the trace, as gRPC metadata or Kafka headers. None: the current span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(current) if current is not None else None)
    return carrier


def continued_trace(headers: Mapping[str, str]) -> Context:
    """The trace context in the sender's headers."""
    return propagate.extract(headers)


@contextmanager
def span(
    name: str, parent: Context | None = None, kind: SpanKind = SpanKind.INTERNAL, **attributes: str | int | float
) -> Iterator[trace.Span]:
    """A span of the current trace around what is done inside."""
    with tracer.start_as_current_span(name, context=parent, kind=kind, attributes=attributes) as current:
        yield current


@contextmanager
def following(
    name: str, causes: Sequence[trace.SpanContext], kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[trace.Span]:
    """A span of work that several traces caused. It continues the first one and links the others."""
    known = [cause for cause in causes if cause.is_valid]
    parent = trace.set_span_in_context(trace.NonRecordingSpan(known[0])) if known else None
    with tracer.start_as_current_span(name, parent, kind, links=list(map(trace.Link, known[1:]))) as current:
        yield current


# Codes that make a server's span an error. For others the caller is at fault (OpenTelemetry's conventions for gRPC).
_SERVER_ERRORS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")


def end_rpc_span(span: trace.Span, code: str, reason: str, *, server: bool) -> None:
    """Records in the span how a gRPC call ended."""
    span.set_attribute("rpc.response.status_code", code)
    if code == "OK":
        return
    span.set_attribute("error.type", reason or code)
    if not server or code in _SERVER_ERRORS:
        span.set_status(Status(StatusCode.ERROR, reason or code))
