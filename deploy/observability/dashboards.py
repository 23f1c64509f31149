"""Writes the Grafana dashboards: python deploy/observability/dashboards.py (make dashboards)

Each dashboard is a list of rows, each row a list of panels, each panel a title, a unit and its queries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
GRID, HEIGHT = 24, 8
RECOMMEND = 'rpc_method="citewell.recommender.v1.RecommenderService/Recommend"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time. `queries` maps each legend to its PromQL."""

    title: str
    unit: str
    queries: dict[str, str]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels of equal width."""

    uid: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]


def rate(metric: str, by: str = "", labels: str = "") -> str:
    """Increase of a counter in a second."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str = "", labels: str = "") -> str:
    """A quantile of a histogram's values."""
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({histogram}_bucket{{{labels}}}[$__rate_interval])))"


CALLS = "grpc_server_call_duration_seconds"
PROMISES = Dashboard(
    "citewell-promises",
    "citewell: promises",
    (
        (
            Panel(
                "Publications: age of the oldest that waits",
                "s",
                {
                    "in the log": "max(citewell_lag_age_seconds)",
                    "applied, not searchable": "max(citewell_snapshot_age_seconds)",
                },
                "Every acknowledged event takes effect or is a dead letter (P1).",
            ),
            Panel("Dead letters", "short", {"dead letters": "max(citewell_dead_letters)"}),
            Panel(
                "Served view",
                "short",
                {"complete": "min(citewell_view_complete)", "refills": "sum(citewell_index_refills_total)"},
                "An index that lost its data says so and fills itself again (P9).",
            ),
        ),
        (
            Panel(
                "Recommend: how calls end",
                "reqps",
                {"{{rpc_response_status_code}}": rate(f"{CALLS}_count", "rpc_response_status_code", RECOMMEND)},
                "An accepted request meets its deadline or fails with DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED (P4).",
            ),
            Panel(
                "Recommend: latency",
                "s",
                {
                    "p50": quantile(0.5, CALLS, labels=RECOMMEND),
                    "p95": quantile(0.95, CALLS, labels=RECOMMEND),
                    "p99": quantile(0.99, CALLS, labels=RECOMMEND),
                },
            ),
            Panel(
                "Degraded answers",
                "reqps",
                {"{{reason}}": rate("citewell_recommender_degraded_total", "reason") + " > 0"},
                "Losing the reranker or the evidence search degrades the answer and says so (P5).",
            ),
        ),
        (
            Panel(
                "Refused calls",
                "reqps",
                {"{{rpc_method}} {{limit}}": rate("citewell_calls_shed_total", "rpc_method, limit") + " > 0"},
            ),
            Panel(
                "Dependencies that do not answer",
                "short",
                {"{{job}} → {{dependency}}": "max by (job, dependency) (1 - citewell_dependency_up) > 0"},
            ),
            Panel("Breakers", "short", {"{{service}}": "max by (service) (citewell_recommender_breaker_open)"}),
        ),
    ),
)
ANSWERS = Dashboard(
    "citewell-answers",
    "citewell: answers",
    (
        (
            Panel("Answers", "reqps", {"{{strategy}}": rate("citewell_recommender_answers_total", "strategy")}),
            Panel(
                "p95 by stage",
                "s",
                {"{{stage}}": quantile(0.95, "citewell_recommender_stage_duration_seconds", "stage")},
            ),
        ),
        (
            Panel("p95 by method", "s", {"{{rpc_method}}": quantile(0.95, CALLS, "rpc_method")}),
            Panel("Calls in progress", "short", {"{{rpc_method}}": "sum by (rpc_method) (citewell_calls_in_flight)"}),
        ),
        (
            Panel(
                "Index: p95 of a search",
                "s",
                {"{{stage}} {{engine}}": quantile(0.95, "citewell_index_search_duration_seconds", "stage, engine")},
            ),
            Panel(
                "Reranker: pairs",
                "short",
                {
                    "scored a second": rate("citewell_reranker_pairs_total"),
                    "waiting": "sum(citewell_reranker_waiting_pairs)",
                },
            ),
            Panel("Reranker: batches", "s", {"p95": quantile(0.95, "citewell_reranker_batch_duration_seconds")}),
        ),
    ),
)
PUBLICATIONS = Dashboard(
    "citewell-publications",
    "citewell: publications",
    (
        (
            Panel("Published", "reqps", {"{{kind}}": rate("citewell_published_total", "kind")}),
            Panel("Judged by the ledger", "reqps", {"{{outcome}}": rate("citewell_ledger_events_total", "outcome")}),
        ),
        (
            Panel(
                "Records not acknowledged, by partition",
                "short",
                {"{{partition}}": "max by (partition) (citewell_lag)"},
            ),
            Panel("Attempts that failed", "reqps", {"{{reason}}": rate("citewell_retries_total", "reason")}),
        ),
        (
            Panel("Objects waiting for projection", "short", {"{{view}}": "max by (view) (citewell_view_waiting)"}),
            Panel("Points written to the index", "reqps", {"{{kind}}": rate("citewell_projected_total", "kind")}),
            Panel("Points in the index", "short", {"{{kind}}": "max by (kind) (citewell_index_points)"}),
        ),
    ),
)
DASHBOARDS = (PROMISES, ANSWERS, PUBLICATIONS)


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels = []
    for line, row in enumerate(dashboard.rows):
        width = GRID // len(row)
        for column, panel in enumerate(row):
            place = {"h": HEIGHT, "w": width, "x": column * width, "y": line * HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": source}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def written(dashboard: Dashboard) -> tuple[Path, str]:
    """The file of a dashboard, and its content."""
    return FOLDER / f"{dashboard.uid}.json", json.dumps(to_json(dashboard), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        path, content = written(each)
        path.write_text(content)
