"""Traces of real calls: a client's and a server's span, and in both how the call ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from citewell.runtime.errors import CitewellError
from tests.integration.test_service_process import NAME, connected, rerank, running


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
