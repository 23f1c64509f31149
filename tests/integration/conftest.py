"""Index, profiler and ingestion as processes, for the modules that ask for them, and a client of theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from citewell.commands.stack import Stack
from tests.e2e.client import Client
from tests.servers.ledger_stack import ledger_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with ledger_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    client = Client(stack.addresses)
    yield client
    client.close()
