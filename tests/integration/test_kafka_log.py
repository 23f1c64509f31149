"""What only a broker can do to the log: outages, evictions, security, topics that are replaced."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pydantic import SecretStr
from typer.testing import CliRunner

from citewell.commands import topics
from citewell.ingestion.logs.event_log import Claim, ClaimLost, Consumer, LogBroken
from citewell.ingestion.logs.kafka import member as kafka_member
from citewell.ingestion.logs.kafka.log import KafkaLog
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.runtime.errors import CitewellError, FailedPrecondition, InvalidField, Unavailable
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics
from tests.servers.processes import wait_until
from tests.servers.proxy import Proxy

PATIENCE = 60.0


@dataclass
class Spoilt:
    """A broker that may be killed, behind a link that may be cut."""

    broker: KafkaBroker
    link: Proxy

    def fresh_log(self, **changes: object) -> KafkaSettings:
        return fresh_topics(self.broker, 1, bootstrap_servers=f"127.0.0.1:{self.link.port}", **changes)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoilt]:
    with Proxy() as link:
        broker = KafkaBroker(tmp_path_factory.mktemp("spoilt"), advertised_link_port=link.port)
        link.target_port = broker.link_port
        try:
            yield Spoilt(broker.start(), link)
        finally:
            broker.kill()


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings, give_up=pytest.fail)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


async def only_claim(consumer: Consumer) -> Claim:
    async with asyncio.timeout(PATIENCE):
        while not (held := await consumer.claims(frozenset())):
            pass
    [claim] = held
    return claim


async def append_until_taken(log: KafkaLog, value: bytes) -> int:
    """What every publisher does: the same event again until it is acknowledged."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return (await log.append("key", value, {})).offset
            except Unavailable:
                await asyncio.sleep(0.1)


async def everything(log: KafkaLog) -> list[bytes]:
    [state] = await log.partitions("any")
    return [record.value for record in await log.read(0, state.first_offset, state.end_offset, 10_000)]


@pytest.mark.fault
@pytest.mark.parametrize("outage", ["killed", "cut", "reset", "black hole"])
async def test_an_outage_loses_nothing_and_everything_resumes_by_itself(spoilt: Spoilt, outage: str) -> None:
    settings = spoilt.fresh_log(request_seconds=2.0, delivery_seconds=4.0)
    async with opened(settings) as log:
        consumer = await log.join("g")
        claim = await only_claim(consumer)
        await log.append("key", b"before", {})
        assert [record.value for record in await consumer.fetch(claim, 9, 1 << 20, PATIENCE)] == [b"before"]
        match outage:
            case "killed":
                spoilt.broker.kill()
            case "cut":
                spoilt.link.cut()
            case "reset":
                spoilt.link.reset()
            case "black hole":
                spoilt.link.blackhole()
        during = [asyncio.create_task(append_until_taken(log, b"%d" % number)) for number in range(20)]
        committing = asyncio.create_task(_commit_until_taken(consumer, 1))
        if outage != "reset":
            with pytest.raises(CitewellError):
                await log.append("key", b"unlucky", {})
        if outage == "killed":
            await asyncio.to_thread(spoilt.broker.start)
        else:
            spoilt.link.restore()
        acknowledged = await asyncio.gather(*during)
        await committing
        await append_until_taken(log, b"after")
        found = await everything(log)
        assert len(set(acknowledged)) == 20
        assert {found[offset] for offset in acknowledged} == {b"%d" % number for number in range(20)}
        assert (found[0], found[-1]) == (b"before", b"after")
        async with asyncio.timeout(PATIENCE):
            while (await log.partitions("g"))[0].committed_offset < len(found):
                await _work_once(consumer)
        await consumer.close()


async def _work_once(consumer: Consumer) -> None:
    """A worker's round: what comes is committed; a lost claim is asked for again."""
    claim = await only_claim(consumer)
    try:
        if records := await consumer.fetch(claim, 100, 1 << 20, 0.5):
            await consumer.commit(claim, records[-1].position.offset + 1)
    except (ClaimLost, Unavailable):
        return


async def _commit_until_taken(consumer: Consumer, offset: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await consumer.commit(await only_claim(consumer), offset)
            except (ClaimLost, Unavailable):
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.fault
async def test_an_append_whose_publisher_left_fails_in_silence(spoilt: Spoilt) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
    settings = spoilt.fresh_log(request_seconds=1.0, delivery_seconds=2.0)
    async with opened(settings) as log:
        earlier = threading.Event()
        log._sending.submit(earlier.wait, PATIENCE)  # the append waits behind it
        leaving = asyncio.create_task(log.append("p", b"value", {}))
        await asyncio.sleep(0)
        spoilt.broker.kill()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        earlier.set()
        waiting = log._waiting
        await asyncio.to_thread(wait_until, lambda: waiting.events == 0, "Kafka's client gives it up", PATIENCE)
    spoilt.broker.start()
    del log, leaving
    gc.collect()
    assert reported == []


async def test_one_who_wakes_up_after_its_partitions_were_taken_can_spoil_nothing(spoilt: Spoilt) -> None:
    settings = spoilt.fresh_log(session_seconds=3.0, request_seconds=2.0)
    direct = settings.model_copy(update={"bootstrap_servers": spoilt.broker.address})
    async with opened(settings) as sleepy, opened(direct) as awake:
        for number in range(4):
            await awake.append("key", b"%d" % number, {})
        first = await sleepy.join("g")
        old = await only_claim(first)
        assert len(await first.fetch(old, 1, 1 << 20, PATIENCE)) == 1
        spoilt.link.blackhole()
        second = await awake.join("g")
        claim = await only_claim(second)
        async with asyncio.timeout(PATIENCE):
            while not (records := await second.fetch(claim, 9, 1 << 20, 1.0)):
                pass
        await second.commit(claim, 4)
        spoilt.link.restore()
        with pytest.raises((ClaimLost, Unavailable)):
            await first.commit(old, 1)
        async with asyncio.timeout(PATIENCE):
            while await first.claims(frozenset({old})) & {old}:
                pass
        with pytest.raises(ClaimLost):
            await first.commit(old, 1)
        assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]
        assert (await awake.partitions("g"))[0].committed_offset == 4
        await first.close()
        await second.close()


async def test_work_that_does_not_end_holds_a_partition_up_for_a_bounded_time(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1, hand_over_seconds=1.0)
    async with opened(settings) as log:
        await log.append("key", b"x", {})
        busy = await log.join("g")
        claim = await only_claim(busy)
        assert await busy.fetch(claim, 1, 1 << 20, PATIENCE)
        others = [await log.join("g") for _ in range(3)]
        await busy.close()
        async with asyncio.timeout(PATIENCE):
            waiting = {asyncio.create_task(only_claim(other)): other for other in others}
            done, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            [taken] = done
            assert await waiting[taken].fetch(taken.result(), 1, 1 << 20, PATIENCE)
        for task in late:
            task.cancel()
        for other in others:
            await other.close()


@pytest.mark.parametrize(("count", "size"), [(3000, 10), (60, 1 << 20)])
async def test_what_nobody_fetches_is_paused(kafka_broker: KafkaBroker, count: int, size: int) -> None:
    settings = fresh_topics(kafka_broker, 1)
    async with opened(settings) as log:
        await asyncio.gather(*(log.append("key", b"%d".ljust(size) % number, {}) for number in range(count)))
        consumer = await log.join("g")
        claim = await only_claim(consumer)
        seen = await consumer.fetch(claim, 1, 1 << 20, PATIENCE)
        rounds, before = 0, -1
        while rounds < 5:  # the poller goes round, and nothing is added
            held = len(consumer._buffers[0])
            rounds, before = (rounds + 1, held) if held == before else (0, held)
            await asyncio.sleep(2 * kafka_member.POLL_SECONDS)
        assert before <= kafka_member.FULL + kafka_member.MOST_POLLED
        assert before * size <= kafka_member.FULL_BYTES + (2 * settings.most_message_megabytes << 20)
        while len(seen) < count:
            seen += await consumer.fetch(claim, 700, 1 << 20, PATIENCE)
        assert [int(record.value) for record in seen] == list(range(count))
        await consumer.close()


async def test_tls_and_a_password(kafka_broker: KafkaBroker) -> None:
    plain = fresh_topics(kafka_broker, 1)
    secure = plain.model_copy(
        update={
            "bootstrap_servers": kafka_broker.secure_address,
            "tls": True,
            "ca": kafka_broker.ca,
            "sasl_mechanism": "PLAIN",
            "username": kafka_broker.user,
            "password": SecretStr(kafka_broker.password),
            "request_seconds": 3.0,
        }
    )
    async with opened(secure) as log:
        await log.append("key", b"sealed", {})
        consumer = await log.join("g")
        claim = await only_claim(consumer)
        assert [record.value for record in await consumer.fetch(claim, 1, 1 << 20, PATIENCE)] == [b"sealed"]
        await consumer.close()
    stranger = KafkaLog(secure.model_copy(update={"password": SecretStr("wrong")}), give_up=pytest.fail)
    with pytest.raises((FailedPrecondition, Unavailable), match=r"Authentication|no broker answers") as refused:
        await stranger.start()
    assert "wrong" not in refused.value.message
    await stranger.stop()


async def test_a_replaced_topic_is_another_log(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    async with opened(settings) as log:
        await log.append("key", b"x", {})
        admin = KafkaAdminClient(**settings.client())
        admin.delete_topics([settings.topic])
        options = {settings.topic: {"num_partitions": 1, "replication_factor": 1}}
        admin.create_topics(options, wait_for_metadata=True)
        admin.close()
        with pytest.raises(LogBroken, match="was replaced"):
            await log.partitions("g")
        async with opened(settings) as other:
            assert other.log_id != log.log_id


async def test_without_topics_it_says_how_to_make_them(kafka_broker: KafkaBroker) -> None:
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka_broker.address, topic="absent"), give_up=pytest.fail)
    with pytest.raises(FailedPrecondition, match=r"absent.*citewell topics apply"):
        await log.start()
    await log.stop()


async def test_an_event_too_large_is_refused_and_the_next_is_taken(kafka_broker: KafkaBroker) -> None:
    settings = fresh_topics(kafka_broker, 1)
    for megabytes in (
        settings.most_message_megabytes,
        settings.most_message_megabytes + 1,
    ):  # client, broker
        async with opened(settings.model_copy(update={"most_message_megabytes": megabytes})) as log:
            with pytest.raises(InvalidField):
                await log.append("key", bytes(settings.most_message_megabytes << 20), {})
            await log.append("key", b"small", {})


def test_the_command_makes_and_checks_the_topics(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "CITEWELL_INGESTION__LOG__KAFKA__"
    for name, value in (("BOOTSTRAP_SERVERS", kafka_broker.address), ("TOPIC", "t"), ("DEAD_LETTER_TOPIC", "d")):
        monkeypatch.setenv(prefix + name, value)
    size = ["--partitions", "2", "--replication", "1"]

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(topics.app, list(words))
        return result.exit_code, result.output

    code, said = run("check", *size)
    assert code == 1
    assert "t: missing; d: missing" in said
    assert run("apply", *size)[0] == 0
    assert run("check", *size) == (0, "the topics are as they should be\n")
    monkeypatch.setenv(prefix + "MOST_MESSAGE_MEGABYTES", "2")
    assert "max.message.bytes is 9437184, expected 2097152" in run("check", *size)[1]
    assert "set to 2097152" in run("apply", *size)[1]
    code, said = run("apply", "--partitions", "3", "--replication", "1")
    assert code == 1
    assert "t: has 2 partitions, expected 3" in said


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
async def test_records_of_other_producers_are_read_whatever_their_codec(kafka_broker: KafkaBroker, codec: str) -> None:
    settings = fresh_topics(kafka_broker, 1)
    producer = KafkaProducer(**settings.client(), compression_type=codec)
    try:
        await asyncio.to_thread(lambda: producer.send(settings.topic, b"value" * 100, key=b"key").get(PATIENCE))
    finally:
        producer.close()
    async with opened(settings) as log:
        [record] = await log.read(0, 0, 1, 1)
    assert (record.key, record.value) == ("key", b"value" * 100)
