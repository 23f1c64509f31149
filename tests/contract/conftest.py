"""The ledger on every database it runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from citewell.profiler.ledger.database import Database
from tests.ledger_suite import World


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture
def world(url: str) -> Iterator[World]:
    made = World(url)
    yield made
    made.database.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    yield made
    made.close()
