"""The servers as pytest fixtures: one of each per test run, started by the first test that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# Imported on use, because unit tests do not need the clients.
if TYPE_CHECKING:
    from tests.servers.kafka_broker import KafkaBroker
    from tests.servers.postgres import PostgresServer
    from tests.servers.triton import TritonServer


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running broker shared by the tests that leave it running."""
    from tests.servers.kafka_broker import KafkaBroker

    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server shared by the tests that leave it running."""
    from tests.servers.postgres import PostgresServer

    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The SQLAlchemy address of an empty database for this test."""
    return postgres_server.fresh_database()


@pytest.fixture(scope="session")
def triton_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running Triton with version 1 of the model "davinci", shared by the tests that do not change it."""
    from tests.servers.triton import TritonServer

    server = TritonServer(tmp_path_factory.mktemp("triton"))
    server.add_version(1)
    try:
        yield server.start()
    finally:
        server.kill()
