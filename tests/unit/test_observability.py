"""Alert rules and dashboards: valid, current, and each alert has an entry in the runbook."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.servers.prometheus import ALERTS, require_prometheus

ROOT = Path(__file__).parents[2]
FOLDER = ALERTS.parent


def _dashboards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", FOLDER / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dashboards"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_names_an_entry_of_the_runbook() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            assert anchor in _anchors(ROOT / page), rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket")


def test_every_command_of_the_runbook_is_run_by_its_test() -> None:
    commands = re.findall(r"^```sh (\S+)$", (ROOT / "deploy/docs/runbook.md").read_text("utf-8"), re.MULTILINE)
    run = re.findall(r'COMMANDS\["([\w-]+)"\]', (ROOT / "tests/faults/test_runbook.py").read_text("utf-8"))
    assert len(commands) > 5
    assert set(run) == set(commands)


def test_dashboards_are_those_of_their_source() -> None:
    dashboards = _dashboards()
    written = dict(dashboards.written(each) for each in dashboards.DASHBOARDS)
    assert written == {path: path.read_text("utf-8") for path in (FOLDER / "dashboards").glob("*.json")}, (
        "run make dashboards"
    )


@pytest.mark.parametrize("arguments", [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]])
def test_promtool_accepts_the_rules(arguments: list[str]) -> None:
    promtool = require_prometheus("promtool")
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_every_query_of_the_dashboards(tmp_path: Path) -> None:
    promtool = require_prometheus("promtool")
    queries = [
        query.replace("$__rate_interval", "1m")
        for dashboard in _dashboards().DASHBOARDS
        for row in dashboard.rows
        for panel in row
        for query in panel.queries.values()
    ]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", "queries.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
