"""The Python client: what callers see of events that cannot be sent, and of a client that is closed."""

from __future__ import annotations

import itertools
import threading

import grpc
import pytest

from citewell.client import Citewell, CitewellError, InvalidField, Publication, Retraction
from citewell.client.aio import Publishable
from citewell.ingestion.v1 import ingestion_pb2
from citewell.runtime.channels import from_rpc_error
from citewell.runtime.errors import Unavailable
from citewell.scholarly.contexts import MaskedContext
from tests.servers.processes import free_ports, wait_until


def nobody() -> str:
    """An address at which nothing listens, so that a call is repeated until its deadline."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def test_closing_ends_a_call_that_another_thread_waits_for() -> None:
    citewell = Citewell(ingestion=nobody())
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            citewell.publish(Publication("p", 1, "T"), timeout=600.0)
        except BaseException as error:
            raised.append(error)

    calling = threading.Thread(target=publish, daemon=True)
    calling.start()
    wait_until(lambda: "ingestion" in citewell._client._channels, 10)
    citewell.close()
    calling.join(10)
    assert not calling.is_alive()
    assert isinstance(raised[0], Unavailable)
    with pytest.raises(ValueError, match="closed"):
        citewell.log()
    citewell.close()


def test_an_unfinished_iteration_may_end_after_the_client_is_closed() -> None:
    refused = (Publication(f"p{number}", 1, "\ud83d") for number in itertools.count())
    with Citewell(ingestion=nobody()) as citewell:
        receipts = citewell.publish_all(refused)
        assert isinstance(next(receipts), CitewellError)
    receipts.close()  # type: ignore[attr-defined]  # as the garbage collection does


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (Publication("p", 1, "Lone \ud83d half"), "publication.title", "BROKEN_UTF8"),
        (
            Publication("p", 1, "T", masked_contexts=(MaskedContext("a", "b"), MaskedContext("c \udce9", "d"))),
            "publication.masked_contexts[1].text",
            "BROKEN_UTF8",
        ),
        (Retraction("p", 1, "\ud83d"), "retraction.reason", "BROKEN_UTF8"),
        (Publication("p", 1, "T", abstract="a" * (40 << 20)), "publication", "EVENT_TOO_LARGE"),
        (
            ingestion_pb2.PublishRequest(publication={"paper_id": "p", "abstract": "a" * (40 << 20)}),
            "publication",
            "EVENT_TOO_LARGE",
        ),
    ],
    ids=["title", "context", "reason", "large", "large message"],
)
def test_an_event_that_no_message_can_hold_is_refused_at_once_and_ends_no_stream(
    body: Publishable, field: str, reason: str
) -> None:
    with Citewell(ingestion=nobody()) as citewell:
        receipts = citewell.publish_all([body, body], timeout=600.0)
        for error in (next(receipts), next(receipts)):
            assert isinstance(error, InvalidField)
            assert (error.field, error.reason) == (field, reason)
            error.message.encode()


def test_a_message_that_grpc_refuses_for_its_size_is_not_sent_again() -> None:
    words = "SERVER: Received message larger than max (40000059 vs. 33554432)"
    none = grpc.aio.Metadata()
    error = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, none, none, words), "recommend")
    assert (error.code.name, error.reason, error.retryable) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE", False)
    assert words in error.message
