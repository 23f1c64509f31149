"""Reads a service's Prometheus endpoint as Prometheus does."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one scrape."""

    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float:
        """The largest sample with these labels; NaN, which equals nothing, when there is none."""
        found = [
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return max(found, default=float("nan"))

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label."""
        return {sample.labels[label] for sample in self.samples if sample.name == name and label in sample.labels}

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def scraped(port: int) -> Scrape:
    """What the endpoint on this port says now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return Scrape(tuple(sample for family in families for sample in family.samples))
