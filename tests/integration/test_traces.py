"""Traces of real calls: a client's and a server's span, and in both how the call ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from citewell.recommender.server import RecommenderServer
from citewell.recommender.settings import RecommenderSettings
from citewell.recommender.v1.recommender_pb2 import RecommendManuscriptRequest
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import answers, open_channel
from citewell.runtime.errors import CitewellError, DeadlineExceeded, InvalidField
from citewell.runtime.server import ServiceProcess
from tests.integration.test_service_process import NAME, connected, rerank, running
from tests.servers.in_process import until_serving


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield kept
    kept.shutdown()  # keeps nothing of what comes later


async def spans_of(exporter: InMemorySpanExporter, word: str) -> dict[SpanKind, ReadableSpan]:
    """The two spans of one call, once the server has ended too."""
    async with running() as (_, process), connected(process) as stub:
        with suppress(CitewellError):
            await rerank(stub, word)
    return {span.kind: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize(
    ("word", "code", "reason", "client", "server"),
    [
        ("", "OK", None, StatusCode.UNSET, StatusCode.UNSET),
        ("defect", "INTERNAL", "INTERNAL", StatusCode.ERROR, StatusCode.ERROR),
        ("busy", "RESOURCE_EXHAUSTED", "OVERLOADED", StatusCode.ERROR, StatusCode.UNSET),
        ("precondition", "FAILED_PRECONDITION", "ENCODER_MISMATCH", StatusCode.ERROR, StatusCode.UNSET),
    ],
)
async def test_spans_tell_how_a_call_ended(
    exporter: InMemorySpanExporter, word: str, code: str, reason: str | None, client: StatusCode, server: StatusCode
) -> None:
    spans = await spans_of(exporter, word)
    assert spans.keys() == {SpanKind.CLIENT, SpanKind.SERVER}
    for kind, status in ((SpanKind.CLIENT, client), (SpanKind.SERVER, server)):
        span = spans[kind]
        assert span.name == f"{NAME}/Rerank"
        assert span.status.status_code is status
        assert span.attributes is not None
        assert (span.attributes["rpc.response.status_code"], span.attributes.get("error.type")) == (code, reason)
    parent = spans[SpanKind.SERVER].parent
    assert parent is not None
    assert parent.span_id == spans[SpanKind.CLIENT].context.span_id


async def test_a_stream_of_answers_has_a_client_span_too(exporter: InMemorySpanExporter) -> None:
    settings = RecommenderSettings(profiler_address="127.0.0.1:9", index_address="127.0.0.1:9")
    process = ServiceProcess("recommender", settings, RecommenderServer(settings))
    task = asyncio.create_task(process.run())
    await asyncio.wait_for(process.bound.wait(), 10)
    channel = open_channel(f"127.0.0.1:{process.port}")
    try:
        await until_serving(channel, "citewell.recommender.v1.RecommenderService")
        stub = RecommenderServiceStub(channel)
        with deadlines.within(10), pytest.raises(InvalidField):
            await anext(answers(stub.RecommendManuscript, RecommendManuscriptRequest(), "manuscript"))
    finally:
        await channel.close()
        process.stop()
        await asyncio.wait_for(task, 20)
    name = "citewell.recommender.v1.RecommenderService/RecommendManuscript"
    spans = {span.kind: span for span in exporter.get_finished_spans() if span.name == name}
    assert spans.keys() == {SpanKind.CLIENT, SpanKind.SERVER}
    client, server = spans[SpanKind.CLIENT], spans[SpanKind.SERVER]
    assert client.attributes is not None
    assert client.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert client.status.status_code is StatusCode.ERROR
    assert server.parent is not None
    assert server.parent.span_id == client.context.span_id


async def test_a_log_line_names_trace_span_and_caller(
    exporter: InMemorySpanExporter, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.configure_logging("small", "INFO")
    try:
        spans = await spans_of(exporter, "busy")
    finally:
        structlog.reset_defaults()
    lines = (json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{"))
    told = next(line for line in lines if line["event"] == "call")
    server = spans[SpanKind.SERVER].context
    assert (told["trace_id"], told["span_id"]) == (format(server.trace_id, "032x"), format(server.span_id, "016x"))
    assert told["caller"] in ("127.0.0.1", "[::1]")


async def test_the_log_line_of_a_cancelled_call_names_the_caller_too(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure_logging("small", "INFO")
    try:
        async with running() as (service, process), connected(process) as stub:
            with pytest.raises(DeadlineExceeded):
                await rerank(stub, "wait", 1.0)
            await asyncio.wait_for(service.cancelled.wait(), 10)
    finally:
        structlog.reset_defaults()
    lines = (json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{"))
    told = next(line for line in lines if line["event"] == "call")
    assert told["caller"] in ("127.0.0.1", "[::1]")
