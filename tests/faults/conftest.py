"""What every fault test may ask for, and what only `--long` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.hosts import hosts_possible

_LONG = {"test_full_disk.py", "test_memory.py", "test_rolling_restart.py", "test_runbook.py", "test_upgrade.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name == "test_hosts.py":  # test_links.py tests the same promises by proxies on every machine
        return None if hosts_possible() else True
    return True if collection_path.name in _LONG and not config.getoption("long") else None
