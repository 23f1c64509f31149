"""Five services for clients in other languages, and recommenders that are busy, refuse at first, or demand TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from citewell.commands.stack import Stack, choose_ports
from citewell.runtime.channels import SERVICE_CONFIG
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.servers.processes import free_ports, wait_until

PAPERS, SEED = 200, 7
RECOMMEND = "/citewell.recommender.v1.RecommenderService/Recommend"


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a client is told: addresses, the service config, whom to trust."""
    folder = tmp_path_factory.mktemp("clients")
    config = folder / "service-config.json"
    config.write_text(json.dumps(SERVICE_CONFIG))
    with ExitStack() as running:
        stack = Stack(folder, choose_ports(0))
        running.callback(stack.stop)
        stack.start()
        stack.wait()
        client = Client(stack.addresses)
        running.callback(client.close)
        publish(client, [publication for publication, _ in divided(PAPERS, SEED)])

        busy = running.enter_context(_recommender(stack, folder / "busy", {"CITEWELL_RECOMMENDER__MOST_CALLS": "1"}))
        secure, authority = running.enter_context(_secure_recommender(stack, folder / "secure"))
        refusing = running.enter_context(refusing_at_first(stack.addresses["recommender"]))
        yield {
            "CITEWELL_SERVICE_CONFIG": str(config),
            "CITEWELL_RECOMMENDER": stack.addresses["recommender"],
            "CITEWELL_INGESTION": stack.addresses["ingestion"],
            "CITEWELL_BUSY": busy,
            "CITEWELL_REFUSING": refusing,
            "CITEWELL_SECURE": secure,
            "CITEWELL_CA": str(authority),
            "CITEWELL_TOKEN": "any",
        }


@contextmanager
def _recommender(stack: Stack, folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """One more recommender in front of the same services; yields its address."""
    [port] = free_ports(1)
    another = Stack(folder, {**stack.ports, "recommender": port}, settings=settings)
    another.start(["recommender"])
    try:
        if "CITEWELL_RECOMMENDER__TLS__KEY" not in settings:
            another.wait(["recommender"])
        yield another.addresses["recommender"]
    finally:
        another.stop()


@contextmanager
def _secure_recommender(stack: Stack, folder: Path) -> Iterator[tuple[str, Path]]:
    """A recommender with a certificate; yields its address and the authority's certificate."""
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    settings = {
        "CITEWELL_RECOMMENDER__TLS__CERTIFICATE": str(folder / "certificate.pem"),
        "CITEWELL_RECOMMENDER__TLS__KEY": str(folder / "key.pem"),
    }
    trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with _recommender(stack, folder, settings) as address, grpc.secure_channel(address, trusted) as channel:
        connected = grpc.channel_ready_future(channel)
        wait_until(connected.done, "the recommender with a certificate accepts connections", 60)
        yield address, folder / "ca.pem"


@contextmanager
def refusing_at_first(address: str) -> Iterator[str]:
    """A proxy of Recommend that answers UNAVAILABLE to every first attempt and passes retries on."""
    with grpc.insecure_channel(address) as behind:
        recommend = behind.unary_unary(RECOMMEND)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if "grpc-previous-rpc-attempts" not in dict(context.invocation_metadata()):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the first attempt is refused")
            response: bytes = recommend(request, timeout=30)  # grpc-js sends no deadline with a retry
            return response

        class Proxy(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> Any:
                return grpc.unary_unary_rpc_method_handler(answer) if details.method == RECOMMEND else None

        server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Proxy()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()
