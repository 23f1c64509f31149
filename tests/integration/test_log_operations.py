"""What an operator does with a log, on both kinds: dead letters, re-driving, replay; and what bypasses Publish."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from kafka import KafkaProducer

from citewell.commands.stack import Stack
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.ingestion.logs.local.log import LocalLog
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2 import PUBLICATION_STATE_DEAD, PUBLICATION_STATE_SEARCHABLE
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Publication
from citewell.types.messages import publication_to_message
from citewell.types.v1 import publication_pb2
from tests.e2e.client import Client, Refusal
from tests.servers.kafka_topics import fresh_topics
from tests.servers.ledger_stack import ledger_stack
from tests.servers.processes import wait_until

PARTITIONS = 2


@pytest.fixture(scope="module", params=["local", "kafka"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {}
    if request.param == "kafka":
        topics = fresh_topics(request.getfixturevalue("kafka_broker"), PARTITIONS)
        told = topics.model_dump(mode="json", exclude_defaults=True)
        settings = {f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in told.items()}
        settings["CITEWELL_INGESTION__LOG__KIND"] = "kafka"
    with ledger_stack(tmp_path_factory.mktemp(request.param), settings) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    client = Client(stack.addresses)
    yield client
    client.close()


def paper(revision: int = 1, title: str = "Title", paper_id: str = "") -> Publication:
    """By default one that nobody knows yet."""
    return Publication(paper_id or f"p-{uuid.uuid4()}", revision, title)


def refusal(call: Callable[[], Any]) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return Refusal.of(caught.value)


async def append_past_publish(stack: Stack, client: Client, records: list[tuple[bytes, bytes]]) -> list[LogPosition]:
    """Writes keys and values straight into the log, as another producer may do."""
    prefix = "CITEWELL_INGESTION__LOG__KAFKA__"
    told = {name[len(prefix) :].lower(): value for name, value in stack.settings.items() if name.startswith(prefix)}
    if told:
        settings = KafkaSettings.model_validate(told)
        producer = KafkaProducer(**settings.client(), max_request_size=16 << 20)
        log_id = client.ingestion.Info(messages.InfoRequest(), timeout=30).log_id
        sent = [producer.send(settings.topic, value, key=key).get(30) for key, value in records]
        producer.close()
        return [LogPosition(log_id, each.partition, each.offset) for each in sent]
    stack.stop(["ingestion"])
    log = LocalLog(stack.data / "log.sqlite", partitions=PARTITIONS)
    await log.start()
    positions = [await log.append(key.decode(errors="replace"), value, {}) for key, value in records]
    await log.stop()
    stack.start(["ingestion"])
    stack.wait(["ingestion"])
    grpc.channel_ready_future(client.channels["ingestion"]).result(30)
    return positions


def dead_letters(client: Client, page_size: int = 0) -> list[messages.DeadLetter]:
    letters: list[messages.DeadLetter] = []
    asked = messages.ListDeadLettersRequest(page_size=page_size)
    while True:
        page = client.ingestion.ListDeadLetters(asked, timeout=30)
        letters += page.dead_letters
        if not page.next_page_token:
            return letters
        asked.page_token = page.next_page_token


def contradiction(client: Client) -> tuple[messages.PublishResponse, str]:
    """A dead letter, and its paper."""
    first = paper()
    client.publish(first)
    response = client.publish(paper(1, "Something else", first.paper_id))
    assert client.settled(response.token).state == PUBLICATION_STATE_DEAD
    return response, first.paper_id


def test_dead_letters_are_listed_in_pages(client: Client) -> None:
    made = {contradiction(client)[0].event_id for _ in range(5)}
    listed = dead_letters(client, page_size=2)
    assert made <= {letter.event_id for letter in listed}
    assert len({letter.id for letter in listed}) == len(listed)
    assert listed == dead_letters(client)
    refused = refusal(
        lambda: client.ingestion.ListDeadLetters(messages.ListDeadLettersRequest(page_size=1001), timeout=30)
    )
    assert refused.field == "page_size"


def test_a_redriven_dead_letter_is_judged_anew(client: Client) -> None:
    response, paper_id = contradiction(client)
    [letter] = [letter for letter in dead_letters(client) if letter.event_id == response.event_id]
    assert (letter.paper_id, letter.reason, letter.position) == (paper_id, "REVISION_CONFLICT", response.position)
    client.settled(client.publish(paper(2, "Newer", paper_id)).token)
    asked = messages.RedriveDeadLettersRequest(ids=[letter.id], request_id="again")
    [redriven] = client.ingestion.RedriveDeadLetters(asked, timeout=30).published
    status = client.settled(redriven.token)
    assert (status.state, status.outcome) == (PUBLICATION_STATE_SEARCHABLE, "SUPERSEDED")
    assert client.settled(response.token).state == PUBLICATION_STATE_DEAD  # the first event is what it was
    [repeated] = client.ingestion.RedriveDeadLetters(asked, timeout=30).published
    assert repeated.event_id == redriven.event_id != response.event_id


@pytest.mark.parametrize(
    ("letter_id", "code"), [("", "INVALID_ARGUMENT"), ("a-b-c", "INVALID_ARGUMENT"), ("log-0-99999", "NOT_FOUND")]
)
def test_unknown_dead_letters_are_refused(client: Client, letter_id: str, code: str) -> None:
    asked = messages.RedriveDeadLettersRequest(ids=[letter_id])
    assert refusal(lambda: client.ingestion.RedriveDeadLetters(asked, timeout=30)).code == code


def test_redriving_publishes_all_or_nothing(client: Client) -> None:
    response, _ = contradiction(client)
    [letter] = [letter for letter in dead_letters(client) if letter.event_id == response.event_id]
    before = client.ingestion.Info(messages.InfoRequest(), timeout=30)
    asked = messages.RedriveDeadLettersRequest(ids=[letter.id, f"{letter.position.log_id}-0-99999"])
    refused = refusal(lambda: client.ingestion.RedriveDeadLetters(asked, timeout=30))
    assert (refused.code, refused.reason) == ("NOT_FOUND", "NO_SUCH_DEAD_LETTER")
    assert "-0-99999" in refused.message
    after = client.ingestion.Info(messages.InfoRequest(), timeout=30)
    assert [each.end_offset for each in after.partitions] == [each.end_offset for each in before.partitions]
    too_many = messages.RedriveDeadLettersRequest(ids=[letter.id] * 1001)
    assert refusal(lambda: client.ingestion.RedriveDeadLetters(too_many, timeout=30)).field == "ids"


def event(publication: publication_pb2.Publication, **more: Any) -> bytes:
    return publication_pb2.PublicationEvent(publication=publication, **more).SerializeToString()


async def test_what_bypasses_publish_is_applied_or_dead_and_holds_up_nothing(stack: Stack, client: Client) -> None:
    """Each of these is refused by Publish, or cannot even be sent to it."""
    good, large = publication_to_message(paper()), publication_to_message(paper())
    large.vectors.extend(publication_pb2.TextVector(values=bytes(1 << 16)) for _ in range(130))
    crowded = publication_to_message(paper())
    crowded.authors.extend(["x"] * 20_001)
    nameless = publication_to_message(paper(title=" "))
    records = {
        b"\xff\xfe": (b"\xff\xff\xff", "NOT_AN_EVENT"),
        b"empty": (b"", "NOT_AN_EVENT"),
        b"text": (b'{"paper_id": "p"}', "NOT_AN_EVENT"),
        b"cut": (event(good)[:-1], "NOT_AN_EVENT"),
        b"large": (event(large), "EVENT_TOO_LARGE"),
        b"id": (event(good, event_id="e" * 1000), "INVALID_"),
        b"crowded": (event(crowded), "INVALID_"),
        b"nameless": (event(nameless), "INVALID_"),
    }
    positions = await append_past_publish(
        stack, client, [(key, value) for key, (value, _) in records.items()] + [(b"good", event(good))]
    )
    expected = {str(at): reason for at, (_, reason) in zip(positions, records.values(), strict=False)}
    wait_until(lambda: expected.keys() <= {letter.id for letter in dead_letters(client)}, "the dead letters")
    letters = {letter.id: letter for letter in dead_letters(client) if letter.id in expected}
    assert all(letter.reason.startswith(expected[name]) for name, letter in letters.items()), letters
    assert all(letter.message for letter in letters.values())
    info = client.ingestion.Info(messages.InfoRequest(), timeout=30)
    assert info.dead_letters == len(dead_letters(client))
    duplicate = messages.PublishRequest(publication=good)
    token = client.ingestion.Publish(duplicate, timeout=30).token
    assert client.settled(token).outcome in ("APPLIED", "DUPLICATE")  # the same body went in past Publish
    asked = messages.RedriveDeadLettersRequest(ids=[str(positions[0])])
    refused = refusal(lambda: client.ingestion.RedriveDeadLetters(asked, timeout=30))
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "NOT_AN_EVENT")
    assert client.settled(client.publish(paper()).token).state == PUBLICATION_STATE_SEARCHABLE


def test_replaying_times_or_offsets_changes_nothing(client: Client) -> None:
    response = client.publish(paper())
    contradiction(client)
    client.settled(response.token)
    before = dead_letters(client)
    info = client.ingestion.Info(messages.InfoRequest(), timeout=30)
    late = Timestamp()
    late.FromJsonString("2999-01-01T00:00:00Z")
    everything = messages.ReplayRequest(times=messages.TimeRange(first=Timestamp(), end=late))
    replayed = client.ingestion.Replay(everything, timeout=120)
    assert replayed.delivered == sum(partition.end_offset for partition in info.partitions)
    assert replayed.applied == 0
    assert replayed.dead == info.dead_letters == len(before)
    assert replayed.delivered == replayed.duplicates + replayed.superseded + replayed.dead
    position = response.position
    one = messages.OffsetRange(partition=position.partition, first=position.offset, end=position.offset + 1)
    replayed = client.ingestion.Replay(messages.ReplayRequest(offsets=one), timeout=30)
    assert (replayed.delivered, replayed.duplicates) == (1, 1)
    assert dead_letters(client) == before
    nothing = messages.ReplayRequest(times=messages.TimeRange(first=late, end=late))
    assert client.ingestion.Replay(nothing, timeout=30).delivered == 0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (messages.ReplayRequest(), "range"),
        (messages.ReplayRequest(offsets=messages.OffsetRange(partition=2, end=1)), "offsets.partition"),
        (messages.ReplayRequest(offsets=messages.OffsetRange(first=10**9, end=10**9)), "offsets.first"),
        (messages.ReplayRequest(offsets=messages.OffsetRange(first=1, end=0)), "offsets.end"),
        (messages.ReplayRequest(times=messages.TimeRange(first=Timestamp(seconds=9))), "times.end"),
        (messages.ReplayRequest(times=messages.TimeRange(first=Timestamp(seconds=1 << 50))), "times.first"),
    ],
)
def test_ranges_that_are_none_are_refused(client: Client, asked: messages.ReplayRequest, field: str) -> None:
    client.publish(paper())
    refused = refusal(lambda: client.ingestion.Replay(asked, timeout=30))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", field)


def test_a_replay_goes_on_page_by_page_and_any_page_may_be_repeated(client: Client) -> None:
    for _ in range(7):
        response = client.publish(paper())
        client.settled(response.token)
    late = Timestamp()
    late.FromJsonString("2999-01-01T00:00:00Z")
    asked = messages.ReplayRequest(times=messages.TimeRange(first=Timestamp(), end=late), page_size=5)
    total = sum(each.end_offset for each in client.ingestion.Info(messages.InfoRequest(), timeout=30).partitions)
    delivered = 0
    while True:
        page = client.ingestion.Replay(asked, timeout=30)
        assert client.ingestion.Replay(asked, timeout=30) == page  # as after an answer that was lost
        assert (page.applied, page.delivered) == (0, min(5, total - delivered))
        delivered += page.delivered
        assert page.remaining == total - delivered
        if not page.next_page_token:
            break
        client.settled(client.publish(paper()).token)  # what comes later does not belong to the range
        asked = messages.ReplayRequest(page_size=5, page_token=page.next_page_token)
    assert delivered == total


def test_pages_of_a_replay_that_are_none_are_refused(client: Client) -> None:
    client.publish(paper())
    one = messages.ReplayRequest(offsets=messages.OffsetRange(partition=0, end=1), page_size=10_001)
    assert refusal(lambda: client.ingestion.Replay(one, timeout=30)).field == "page_size"
    infinite = base64.urlsafe_b64encode(b'["1", "x", [[0, Infinity, 1]]]').decode()
    for token in ("x", "W10=", "WyIxIiwgMSwgMV0=", infinite):
        asked = messages.ReplayRequest(page_token=token)
        refused = refusal(lambda: client.ingestion.Replay(asked, timeout=30))  # noqa: B023
        assert refused.reason in ("INVALID_TOKEN", "LOG_REPLACED")
