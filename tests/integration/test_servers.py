"""The test servers: they start, survive restarts and kills, and say what is missing on this machine."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.servers.kafka_broker import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy


def _topic(broker: KafkaBroker, name: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()
    return name


def _values(address: str, topic: str, **security: object) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, **security)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    values: list[bytes] = []
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=1000).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def _send(address: str, topic: str, *values: bytes, **security: object) -> None:
    producer = KafkaProducer(bootstrap_servers=address, **security)
    for value in values:
        producer.send(topic, value).get(timeout=20)
    producer.close()


def test_a_killed_broker_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path)
    try:
        broker.start()
        topic = _topic(broker, "kept")
        _send(broker.address, topic, b"one", b"two")
        broker.kill()
        broker.start()
        _send(broker.address, topic, b"three")
        assert _values(broker.address, topic) == [b"one", b"two", b"three"]
        broker.stop()
    finally:
        broker.kill()


def test_the_secure_listener_wants_the_right_password(kafka_broker: KafkaBroker) -> None:
    topic = _topic(kafka_broker, "secure")
    trusted = ssl.create_default_context(cafile=str(kafka_broker.ca))
    security = {
        "security_protocol": "SASL_SSL",
        "ssl_context": trusted,
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": kafka_broker.user,
        "sasl_plain_password": kafka_broker.password,
    }
    _send(kafka_broker.secure_address, topic, b"sealed", **security)
    assert _values(kafka_broker.secure_address, topic, **security) == [b"sealed"]
    with pytest.raises(Exception, match=r"(?i)authentication|bootstrap|brokers"):
        _send(
            kafka_broker.secure_address,
            topic,
            b"x",
            **security | {"sasl_plain_password": "wrong"},
            bootstrap_timeout_ms=3000,
        )


def test_postgres_forgets_only_what_was_not_committed(postgres_server: PostgresServer) -> None:
    address = postgres_server.fresh_database().replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE seen (number int)")
        connection.execute("INSERT INTO seen VALUES (1)")
    for number, shock in enumerate((postgres_server.restart, postgres_server.kill), start=2):
        open_work = psycopg.connect(address)
        open_work.execute("INSERT INTO seen VALUES (99)")
        shock()
        postgres_server.start()
        with pytest.raises(psycopg.OperationalError):
            open_work.execute("SELECT 1")
        open_work.close()
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT max(number) FROM seen").fetchone() == (number - 1,)
            connection.execute("INSERT INTO seen VALUES (%s)", (number,))


def test_every_asker_gets_an_empty_database(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.fresh_database(), postgres_server.fresh_database()
    assert first != second


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy in front of a server that says back what it hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)
        writer.close()

    with Proxy() as front:

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(answer, "127.0.0.1", 0)

        server = front._run(listen())
        front.target_port = server.sockets[0].getsockname()[1]
        yield front
        front._loop.call_soon_threadsafe(server.close)


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def test_the_proxy_spoils_links_and_makes_them_good_again(echo: Proxy) -> None:
    with _connect(echo) as link:
        link.sendall(b"a")
        assert link.recv(1) == b"a"

        echo.delay(0.2)
        asked = time.monotonic()
        link.sendall(b"b")
        assert link.recv(1) == b"b"
        assert time.monotonic() - asked >= 0.4, "late in both directions"
        echo.restore()

        echo.blackhole()
        link.sendall(b"c")
        link.settimeout(0.3)
        with pytest.raises(TimeoutError):
            link.recv(1)
        echo.restore()
        link.settimeout(5)
        assert link.recv(1) == b"c", "held back, then delivered"

        echo.reset()
        with pytest.raises(ConnectionResetError):
            link.recv(1)
    with _connect(echo) as link:
        link.sendall(b"d")
        assert link.recv(1) == b"d"
        echo.cut()
        assert link.recv(1) == b"", "the end of the connection"
    with pytest.raises(ConnectionRefusedError):
        _connect(echo)
    echo.restore()
    with _connect(echo) as link:
        link.sendall(b"e")
        assert link.recv(1) == b"e"


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_what_is_missing_is_skipped_here_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("CITEWELL_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(outcome, match=r"setup-kafka|apt-get"):
        KafkaBroker(tmp_path)
