"""Every service on a host of its own, two of most: links and hosts fail, and P1, P4 and P5 hold. `make hosts`.

The hosts are network namespaces (tests/servers/hosts.py); tests/faults/hosts.py is the program that runs among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.servers.hosts import own_network

pytestmark = pytest.mark.fault


@pytest.mark.timeout(3600)
def test_promises_hold_while_links_and_hosts_fail(
    pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    long = pytestconfig.getoption("long")
    seeds, rounds = (range(5), 25) if long else (range(1), 2)
    program = [sys.executable, "-m", "tests.faults.hosts", "--rounds", str(rounds), "--seeds", *map(str, seeds)]
    done = subprocess.run(
        [*own_network(), *program], capture_output=True, text=True, timeout=3500 if long else 900, env={**os.environ}
    )
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for report in reports:
        record_property(report["name"], json.dumps(report, ensure_ascii=False))
        print(report)
    assert len(reports) == 1 + len(seeds), done.stderr[-3000:]
    assert {report["name"]: report["wrong"] for report in reports if report["wrong"]} == {}
    assert done.returncode == 0, done.stderr[-3000:]
