"""TLS of servers and clients: who gets a connection, and what happens when certificates are replaced or expire."""

from __future__ import annotations

import datetime
import http.client
import ssl
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.runtime import files
from citewell.runtime.settings import ServiceSettings, TlsClient, TlsServer, UnknownSetting
from tests.security.authority import HOUR, Authority, replace
from tests.security.every_service import call, connected, running
from tests.servers.processes import free_ports

PAST = datetime.timedelta(minutes=-1)


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_only_a_certificate_of_the_authority_gets_a_connection(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    expired = TlsClient(
        enabled=True,
        ca=authority.ca,
        **dict(zip(("certificate", "key"), authority.issue("old", "old", until=PAST), strict=True)),
    )
    stranger = other.client("stranger").model_copy(update={"ca": authority.ca})
    async with running(ServiceSettings(tls=authority.server())) as (_, process):
        async with connected(process, authority.client()) as channel:
            assert await call(channel) == "OK"
        for refused in (None, authority.trust, expired, stranger):
            async with connected(process, refused) as channel:
                assert (await call(channel, seconds=10)).partition(" ")[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


async def test_a_client_refuses_a_server_of_another_name_or_authority_or_time(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    wrong = {
        "name": authority.issue("wrong-name", "index.example"),
        "authority": other.issue("wrong-authority", "localhost"),
        "time": authority.issue("wrong-time", "localhost", until=PAST),
        "not yet": authority.issue("not-yet", "localhost", since=HOUR / 2),
    }
    for what, (certificate, key) in wrong.items():
        async with (
            running(ServiceSettings(tls=TlsServer(certificate=certificate, key=key))) as (_, process),
            connected(process, authority.trust) as channel,
        ):
            assert (await call(channel, seconds=10)).startswith("UNAVAILABLE"), what


async def test_a_replaced_certificate_is_used_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    """A new authority takes over on the server, then on a client that stays open; the old certificates are refused."""
    server, client = authority.server(), authority.client()
    async with running(ServiceSettings(tls=server)) as (_, process), connected(process, client) as lasting:
        assert await call(lasting) == "OK"
        before = {path: path.read_bytes() for path in (client.ca, client.certificate, client.key) if path}
        new = Authority(tmp_path / "new")
        for path, source in zip(
            (server.key, server.certificate, server.client_ca),
            (*reversed(new.issue("server", "localhost")), new.ca),
            strict=True,
        ):
            assert path
            replace(path, source.read_bytes())
        # The open connection goes on; a new one with the old certificates is refused on both sides.
        assert await call(lasting) == "OK"
        old = _copied(tmp_path / "old", before)
        async with connected(process, old) as channel:
            assert (await call(channel, seconds=10)).startswith("UNAVAILABLE")
        # The client gets its new certificate, too: its next call uses it.
        fresh = new.client()
        for path, source in ((client.ca, fresh.ca), (client.key, fresh.key), (client.certificate, fresh.certificate)):
            assert path
            assert source
            replace(path, source.read_bytes())
        assert await call(lasting) == "OK"
        async with connected(process, fresh) as channel:
            assert await call(channel) == "OK"


def _copied(folder: Path, contents: dict[Path, bytes]) -> TlsClient:
    folder.mkdir()
    for path, content in contents.items():
        (folder / path.name).write_bytes(content)
    ca, certificate, key = (folder / path.name for path in contents)
    return TlsClient(enabled=True, ca=ca, certificate=certificate, key=key)


async def test_a_half_written_pair_leaves_the_certificate_before_in_use(authority: Authority) -> None:
    server = authority.server(clients=False)
    assert server.key
    async with running(ServiceSettings(tls=server)) as (_, process):
        key = server.key.read_bytes()
        replace(server.key, authority.issue("other", "localhost")[1].read_bytes())
        async with connected(process, authority.trust) as channel:
            assert await call(channel) == "OK"
        replace(server.key, b"not a key")
        async with connected(process, authority.trust) as channel:
            assert await call(channel) == "OK"
        replace(server.key, key)


async def test_a_key_that_does_not_belong_to_the_certificate_is_told_at_start(authority: Authority) -> None:
    certificate, _ = authority.issue("one", "localhost")
    _, key = authority.issue("two", "localhost")
    with pytest.raises(UnknownSetting, match=r"tls.certificate '.*one.pem' and tls.key '.*two.key' are no certificate"):
        async with running(ServiceSettings(tls=TlsServer(certificate=certificate, key=key))):
            pass


async def test_probes_have_a_plain_text_port_that_answers_nothing_else(authority: Authority) -> None:
    (port,) = free_ports(1)
    async with (
        running(ServiceSettings(tls=authority.server(), health_port=port)),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("alive", "started", "ready"):
            answer = await check(health_pb2.HealthCheckRequest(service=name), timeout=5, wait_for_ready=True)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
        assert (await call(channel)).startswith("UNIMPLEMENTED")


async def test_https_demands_the_callers_certificate_and_follows_replaced_files(
    authority: Authority, tmp_path: Path
) -> None:
    from citewell.edge.settings import EdgeSettings
    from tests.security.edge import edge

    server, client = authority.server(), authority.client()
    (port,) = free_ports(1)

    def ask(trusted: Authority, tls: TlsClient | None) -> int:
        context = ssl.create_default_context(cafile=trusted.ca)
        if tls and tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key)
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        finally:
            connection.close()

    async with edge(EdgeSettings(http_port=port, tls=server)) as in_thread:
        assert await in_thread(ask, authority, client) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            await in_thread(ask, authority, None)
        new = Authority(tmp_path / "new")
        fresh = new.client()
        for path, source in zip(
            (server.key, server.certificate, server.client_ca),
            (*reversed(new.issue("server", "localhost")), new.ca),
            strict=True,
        ):
            assert path
            replace(path, source.read_bytes())
        assert await in_thread(ask, new, fresh) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            await in_thread(ask, new, client)
        with pytest.raises(ssl.SSLError):
            await in_thread(ask, authority, fresh)
