"""What an operator sees of running services: metrics for each promise, and one trace for everything a call causes."""

from __future__ import annotations

import json
import re
import secrets

from citewell.scholarly.publications import Publication
from tests.e2e.conftest import Running
from tests.servers.metrics import scraped
from tests.servers.otlp import CollectedSpan
from tests.servers.processes import wait_until
from tests.servers.prometheus import ALERTS

INGESTION, LEDGER = "citewell.ingestion.v1.IngestionService", "citewell.profiler.v1.LedgerService"
INDEX, RECOMMENDER = "citewell.index.v1.IndexService", "citewell.recommender.v1.RecommenderService"


def test_there_is_a_metric_for_each_promise(running: Running) -> None:
    running.client.recommend(running.queries[0].query)

    def value(service: str, name: str, **labels: str) -> float:
        return scraped(running.metrics_ports[service]).value(name, **labels)

    wait_until(lambda: value("ingestion", "citewell_lag_age_seconds") == 0, "no record waits")
    wait_until(lambda: value("profiler", "citewell_view_complete") == 1, "a complete view")
    wait_until(lambda: value("profiler", "citewell_snapshot_age_seconds") == 0, "every event searchable")
    before = value("ingestion", "citewell_dead_letters")
    contradiction = f"contradiction-{secrets.token_hex(4)}"
    for title in ("One", "Another one"):
        accepted = running.client.publish(Publication(contradiction, 1, title))
        running.client.settled(accepted.token)
    wait_until(lambda: value("ingestion", "citewell_dead_letters") == before + 1, "the dead letter counts")
    told = scraped(running.metrics_ports["recommender"])
    assert told.value("citewell_recommender_answers_total", strategy="HYBRID") >= 1
    for stage in ("embed", "search", "rerank", "evidence", "total"):
        assert told.value("citewell_recommender_stage_duration_seconds_count", stage=stage) >= 1
    assert {"RERANKER_UNAVAILABLE", "INDEX_INCOMPLETE"} <= told.labels("citewell_recommender_degraded_total", "reason")
    assert {"reranker", "index", "profiler"} <= told.labels("citewell_recommender_breaker_open", "service")
    for service in running.metrics_ports:
        if service != "edge":
            shed = scraped(running.metrics_ports[service]).labels("citewell_calls_shed_total", "limit")
            assert shed == {"calls", "bytes", "time"}


def test_one_trace_from_the_publisher_through_the_log_to_the_index(running: Running) -> None:
    """Tried again when events of others were in the same batch: then this trace is only linked."""
    expected = {
        ("citewell-ingestion", "SERVER", f"{INGESTION}/Publish"),
        ("citewell-ingestion", "PRODUCER", "append"),
        ("citewell-ingestion", "CONSUMER", "apply batch"),
        ("citewell-ingestion", "CLIENT", f"{LEDGER}/ApplyPublications"),
        ("citewell-profiler", "SERVER", f"{LEDGER}/ApplyPublications"),
        ("citewell-profiler", "INTERNAL", "project batch"),
        ("citewell-profiler", "CLIENT", f"{INDEX}/Upsert"),
        ("citewell-index", "SERVER", f"{INDEX}/Upsert"),
    }
    for _ in range(3):
        trace_id = secrets.token_hex(16)
        body = Publication(f"traced-{trace_id}", 1, "A traced paper")
        accepted = running.client.publish(body, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
        running.client.settled(accepted.token)
        try:
            wait_until(lambda trace_id=trace_id: expected <= _seen(running, trace_id), "the whole trace", seconds=10)
        except TimeoutError:
            continue
        assert _roots(running.traces.trace(trace_id)) == {f"{INGESTION}/Publish"}, "every other span has its parent"
        return
    raise AssertionError(expected - _seen(running, trace_id))


def test_one_trace_of_an_answer(running: Running) -> None:
    trace_id = secrets.token_hex(16)
    running.client.recommend(running.queries[0].query, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
    services = {f"citewell-{name}" for name in ("recommender", "profiler", "index", "reranker")}
    wait_until(lambda: {service for service, _, _ in _seen(running, trace_id)} == services, "spans of four services")
    wait_until(lambda: _roots(running.traces.trace(trace_id)) == {f"{RECOMMENDER}/Recommend"}, "one root")


def test_alerts_and_dashboards_ask_for_metrics_that_exist(running: Running) -> None:
    """What only a failure makes appear is named here."""
    running.client.recommend(running.queries[0].query)
    made_by_failures = {"citewell_retries_total"}
    asked = re.findall(r"\b(?:citewell|grpc)_\w+", ALERTS.read_text())
    for dashboard in (ALERTS.parent / "dashboards").glob("*.json"):
        for panel in json.loads(dashboard.read_text())["panels"]:
            asked += re.findall(r"\b(?:citewell|grpc)_\w+", " ".join(each["expr"] for each in panel["targets"]))
    known = set[str]().union(*(scraped(port).names for port in running.metrics_ports.values()))
    assert len(set(asked)) > 20
    assert set(asked) - known - made_by_failures == set()


def _seen(running: Running, trace_id: str) -> set[tuple[str, str, str]]:
    return {(span.service, span.kind, span.name) for span in running.traces.trace(trace_id)}


def _roots(spans: list[CollectedSpan]) -> set[str]:
    known = {span.span_id for span in spans}
    return {span.name for span in spans if span.parent_id not in known}
