"""Calls to Kafka's client: translates its errors, and ends the process when a call hangs.

kafka-python blocks, so each kind of call has its own thread. A call that exceeds all of its timeouts never returns
(seen in commits after outages). A process that holds a partition without working on it blocks the group, so it ends
itself, and its supervisor starts another.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
)

from citewell.ingestion.logs.event_log import LogBroken
from citewell.runtime.errors import CitewellError, FailedPrecondition, InvalidField, Unavailable
from citewell.runtime.telemetry import logger

T = TypeVar("T")
GiveUp = Callable[[str], object]


def end_process(what: str) -> NoReturn:
    """Exits with EX_SOFTWARE at once: a normal exit would wait for the stuck thread."""
    logger.critical("stuck in Kafka's client, ending the process", call=what)
    os._exit(70)


class BlockingCalls:
    """Runs blocking calls one after another in one thread, and gives up when one is stuck."""

    def __init__(self, name: str, stuck_seconds: float, give_up: GiveUp) -> None:
        self._name, self._stuck_seconds, self._give_up = name, stuck_seconds, give_up
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._free = asyncio.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """The call's result; Kafka's errors are translated. A cancelled caller does not stop the call."""
        running = asyncio.ensure_future(self._run(call))
        running.add_done_callback(_taken_note_of)
        return await asyncio.shield(running)

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._free:
            running = asyncio.get_running_loop().run_in_executor(self._thread, call)
            await asyncio.wait([running], timeout=self._stuck_seconds)
            if not running.done():
                self._give_up(f"{self._name}: a call blocks for more than {self._stuck_seconds:.0f} s")
        return await in_our_words(running)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def _taken_note_of(running: asyncio.Task[Any]) -> None:
    """Keeps asyncio from reporting the error of a call whose caller was cancelled."""
    if not running.cancelled():
        running.exception()


def await_broker(client: Any, seconds: float) -> None:
    """Returns once this consumer found a broker. The client's own bootstrap() may ignore its timeout."""
    end = time.monotonic() + seconds
    while not client._manager.bootstrapped:
        if time.monotonic() > end:
            raise KafkaTimeoutError(f"no broker answers at {','.join(client.config['bootstrap_servers'])}")
        time.sleep(0.02)


def patiently(call: Callable[[], T], seconds: float) -> T:
    """The call's result. Repeats the call for up to so many seconds after errors that Kafka calls retriable."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except KafkaError as error:
            if not error.retriable or time.monotonic() > end:
                raise
            time.sleep(0.1)


async def in_our_words(work: Awaitable[T]) -> T:
    """The work's result. Raises Kafka's errors as errors of our tree."""
    try:
        return await work
    except KafkaError as error:
        raise translated(error) from error


def translated(error: BaseException) -> CitewellError:
    """The error of our tree for an error of Kafka's client."""
    said = f"Kafka: {error}" if str(error) else f"Kafka: {type(error).__name__}"
    match error:
        case CitewellError():
            return error
        case MessageSizeTooLargeError() | RecordListTooLargeError():
            return InvalidField("publication", said, "an event the broker takes (max.message.bytes of the topic)")
        case OffsetOutOfRangeError():
            return LogBroken(said)
        case AuthorizationError() | SaslAuthenticationFailedError():
            return FailedPrecondition(said, reason="KAFKA_REFUSED")
        case UnknownTopicOrPartitionError():
            return FailedPrecondition(f"{said}; `citewell topics apply` makes the topics", reason="NO_TOPIC")
        case _:
            return Unavailable(said)
