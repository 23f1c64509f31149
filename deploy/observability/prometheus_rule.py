"""Writes the alerts as an object of the Prometheus operator: make prometheus-rule."""

from __future__ import annotations

from pathlib import Path

import yaml

ALERTS = Path(__file__).parent / "alerts.yaml"


def prometheus_rule() -> str:
    """alerts.yaml as a PrometheusRule."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "citewell", "labels": {"app.kubernetes.io/part-of": "citewell"}},
        "spec": yaml.safe_load(ALERTS.read_text()),
    }
    head = "# Written by `make prometheus-rule` from deploy/observability/alerts.yaml.\n"
    return head + yaml.safe_dump(rule, sort_keys=False, width=120)


if __name__ == "__main__":
    print(prometheus_rule(), end="")
