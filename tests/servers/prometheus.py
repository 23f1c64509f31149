"""A real Prometheus that scrapes services of this machine and evaluates the shipped alert rules, in fast motion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tests.servers.missing import missing
from tests.servers.processes import end, free_ports, tail, wait_until

ALERTS = Path(__file__).parents[2] / "deploy" / "observability" / "alerts.yaml"
FASTER = 60
"""A minute of the rules is a second here."""
SCRAPE_SECONDS = 0.5

_DURATION = re.compile(r"\b(\d+)(m|h)\b")
_AGE = re.compile(r"> 300\b")


def require_prometheus(program: str = "prometheus") -> str:
    """The program's path; without it the test is skipped with the way to get it."""
    return shutil.which(program) or missing(f"{program} is missing: apt-get install prometheus")


def in_fast_motion(rules: str) -> str:
    """The rules with every time divided by FASTER."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[1]) * {"m": 60, "h": 3600}[found[2]] // FASTER
        return f"{max(1, seconds)}s"

    return _AGE.sub(f"> {300 // FASTER}", _DURATION.sub(shorter, rules))


class Prometheus:
    """Runs while it is entered. `targets` maps a job's name to the port of its metrics."""

    def __init__(self, folder: Path, targets: Mapping[str, int], rules: str = "") -> None:
        self._program = require_prometheus()
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self._folder, self._targets = folder, dict(targets)
        self.rules = rules or in_fast_motion(ALERTS.read_text())
        self.log = folder / "prometheus.log"

    def __enter__(self) -> Self:
        (self._folder / "alerts.yaml").write_text(self.rules)
        self.scrape(self._targets)
        jobs = [{"job_name": "services", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}]
        interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": jobs,
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._ready, f"Prometheus is ready:\n{tail(self.log)}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        end(self._process, self.log)

    def scrape(self, targets: Mapping[str, int]) -> None:
        """Scrapes these from now on."""
        groups = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"job": f"citewell-{name}"}} for name, port in targets.items()
        ]
        (self._folder / "targets.json.partial").write_text(json.dumps(groups))
        (self._folder / "targets.json.partial").replace(self._folder / "targets.json")

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """The alerts that fire now, each with the labels of its instances."""
        fired: dict[str, list[dict[str, str]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                fired.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return fired

    def problems(self) -> list[str]:
        """Rules that could not be evaluated, with their errors."""
        groups = self._get("rules")["groups"]
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def values(self, query: str) -> list[float]:
        """The values of an instant query."""
        return [float(series["value"][1]) for series in self._get("query", query=query)["result"]]

    def over_time(self, query: str, start: float, end_: float, step: float) -> list[dict[str, Any]]:
        """The series of a range query."""
        found = self._get("query_range", query=query, start=str(start), end=str(end_), step=str(step))
        series: list[dict[str, Any]] = found["result"]
        return series

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"Prometheus ended:\n{tail(self.log)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
