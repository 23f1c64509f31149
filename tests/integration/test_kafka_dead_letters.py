"""Dead letters in their topic on a real broker: what they cost, and what their topic may hold besides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kafka import KafkaProducer
from kafka.net.connection import KafkaConnection

from citewell.ingestion.logs.event_log import DeadLetter, Record, without_value
from citewell.ingestion.logs.kafka.log import KafkaLog
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings, give_up=pytest.fail)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is sent to the broker, by kind."""
    counted = Counter[str]()
    send = KafkaConnection.send_request

    def count_and_send(self: KafkaConnection, request: object, *more: object, **options: object) -> object:
        counted[type(request).__name__.split("Request")[0]] += 1
        return send(self, request, *more, **options)

    monkeypatch.setattr(KafkaConnection, "send_request", count_and_send)
    return counted


async def appended(log: KafkaLog, count: int, size: int = 10) -> list[Record]:
    """So many records of one partition."""
    positions = await asyncio.gather(*(log.append("key", bytes(size), {"event-id": "e"}) for _ in range(count)))
    return await log.read(0, min(positions).offset, max(positions).offset + 1, count)


def letter(record: Record, reason: str = "R") -> DeadLetter:
    return DeadLetter(record, "event", "paper", reason, "words", record.appended)


async def test_a_batch_costs_a_few_requests_however_many_records_it_has(
    kafka_broker: KafkaBroker, requests: Counter[str]
) -> None:
    async with opened(fresh_topics(kafka_broker, 1)) as log:
        records = await appended(log, 256)
        positions = [record.position for record in records]
        letters = [letter(record) for record in records]
        requests.clear()
        assert await log.find_dead_letters(positions) == []
        assert requests.total() < 4
        requests.clear()
        await log.bury(letters)
        assert requests.total() < 20
        requests.clear()
        assert await log.find_dead_letters(positions) == letters
        assert requests.total() < 20
        requests.clear()
        assert len(await log.dead_letters(None, 256)) == 256
        assert requests.total() < 20


async def test_all_letters_are_known_however_many_there_are(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    async with opened(settings) as log:
        records = await appended(log, 1300)  # more than one poll returns
        await log.bury([letter(record) for record in records])
        async with opened(settings) as other:
            assert await other.count_dead_letters() == 1300
            assert await other.find_dead_letters([records[-1].position]) == [letter(records[-1])]


async def test_two_workers_bury_the_same_event_once(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    async with opened(settings) as one, opened(settings) as two:
        position = await one.append("key", b"poison", {"event-id": "e"})
        [record] = await one.read(0, position.offset, position.offset + 1, 1)
        letters = [DeadLetter(record, "e", "p", reason, "words", record.appended) for reason in ("FIRST", "SECOND")]
        await asyncio.gather(one.bury(letters[:1]), two.bury(letters[1:]))
        [found] = await one.dead_letters(None, 10)
        assert [found] == await two.dead_letters(None, 10)
        assert found in [without_value(letter) for letter in letters]
        assert await two.count_dead_letters() == 1


async def test_what_others_write_into_the_topic_is_no_letter(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    producer = KafkaProducer(**settings.client())
    stray = [("citewell-dead-log-id", b"x"), ("citewell-dead-partition", b"one")]
    for headers in ([], stray):
        producer.send(settings.dead_letter_topic, b"no letter", headers=headers).get(30)
    producer.close()
    async with opened(settings) as log:
        [record] = await appended(log, 1)
        await log.bury([letter(record)])
        assert await log.dead_letters(None, 10) == [without_value(letter(record))]
        assert await log.count_dead_letters() == 1


async def test_a_letter_that_is_too_large_with_its_headers_is_kept_without_its_value(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    async with opened(settings) as log:
        [record] = await appended(log, 1, size=(settings.most_message_megabytes << 20) - 200)
        await log.bury([letter(record)])
        assert await log.find_dead_letters([record.position]) == [without_value(letter(record))]
