"""The watchdog for blocking calls, and the client's connection settings."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, TopicAuthorizationFailedError
from pydantic import SecretStr, ValidationError

from citewell.ingestion.logs.kafka.calls import BlockingCalls, patiently
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.runtime.errors import FailedPrecondition, Unavailable


async def test_a_stuck_call_is_given_up_and_named() -> None:
    given_up: list[str] = []
    release = threading.Event()

    def give_up(what: str) -> None:
        given_up.append(what)
        release.set()

    calls = BlockingCalls("commit", 0.05, give_up)
    assert await calls.run(lambda: 1) == 1
    await calls.run(release.wait)
    assert given_up == ["commit: a call blocks for more than 0 s"]
    calls.close()


async def test_a_cancelled_caller_leaves_its_call_to_end_before_the_next() -> None:
    calls = BlockingCalls("commit", 10.0, pytest.fail)
    begun, release, order = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        release.wait(10)
        order.append("first")

    cancelled = asyncio.create_task(calls.run(first))
    await asyncio.to_thread(begun.wait, 10)
    cancelled.cancel()
    second = asyncio.create_task(calls.run(lambda: order.append("second")))
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    release.set()
    await second
    assert order == ["first", "second"]
    calls.close()


async def test_the_error_of_a_call_whose_caller_was_cancelled_is_not_reported() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
    calls = BlockingCalls("read", 10.0, pytest.fail)
    begun, release = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        release.wait(10)
        raise KafkaTimeoutError

    cancelled = asyncio.create_task(calls.run(fail))
    await asyncio.to_thread(begun.wait, 10)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    release.set()
    await calls.run(lambda: None)  # the other one has ended by then
    gc.collect()
    assert reported == []
    calls.close()


@pytest.mark.parametrize(
    ("error", "kind"), [(KafkaTimeoutError(), Unavailable), (TopicAuthorizationFailedError("t"), FailedPrecondition)]
)
async def test_kafkas_errors_come_in_our_words(error: Exception, kind: type[Exception]) -> None:
    def call() -> None:
        raise error

    calls = BlockingCalls("read", 10.0, pytest.fail)
    with pytest.raises(kind, match="Kafka"):
        await calls.run(call)
    calls.close()


def test_what_kafka_asks_to_repeat_is_repeated_and_nothing_else() -> None:
    answers = iter([KafkaConnectionError(), KafkaTimeoutError(), None])

    def call() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "there"

    assert patiently(call, 10.0) == "there"
    answers = iter([TopicAuthorizationFailedError("t")])
    with pytest.raises(TopicAuthorizationFailedError):
        patiently(call, 10.0)


@pytest.mark.parametrize(
    ("changes", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": True}, "SSL"),
        ({"sasl_mechanism": "PLAIN", "username": "u"}, "SASL_PLAINTEXT"),
        ({"tls": True, "sasl_mechanism": "SCRAM-SHA-512", "username": "u", "password": SecretStr("p")}, "SASL_SSL"),
    ],
)
def test_settings_name_the_protocol(changes: dict[str, object], protocol: str) -> None:
    client = KafkaSettings.model_validate(changes).client()
    assert client["security_protocol"] == protocol
    assert ("ssl_context" in client) == ("SSL" in protocol)


def test_a_delivery_that_is_shorter_than_a_request_is_refused() -> None:
    """The client would refuse it at every attempt to start, as if the broker were away."""
    with pytest.raises(ValidationError, match="delivery_seconds is 10; expected more than request_seconds"):
        KafkaSettings(request_seconds=10, delivery_seconds=10)


def test_a_mechanism_without_a_user_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a username"):
        KafkaSettings(sasl_mechanism="PLAIN")
