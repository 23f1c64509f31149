"""Ingestion as a process beside a real ledger: publishing, following, the log's one owner."""

import base64
import json
import os
import re
import signal
import sqlite3
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.tokens import encode_token
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2 import (
    PUBLICATION_STATE_ACCEPTED,
    PUBLICATION_STATE_SEARCHABLE,
)
from citewell.profiler.v1 import ledger_pb2
from citewell.scholarly.contexts import CitationMarker, Passage
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Publication
from citewell.types.messages import publication_to_message
from citewell.types.v1 import publication_pb2
from tests.e2e.client import Client, Refusal
from tests.servers.processes import wait_until


def paper(revision: int = 1, title: str = "Title", paper_id: str = "") -> Publication:
    """By default one that nobody knows yet."""
    return Publication(paper_id or f"p-{uuid.uuid4()}", revision, title)


def request(publication: Publication, **more: Any) -> messages.PublishRequest:
    return messages.PublishRequest(publication=publication_to_message(publication), **more)


def refusal(call: Callable[[], Any]) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return Refusal.of(caught.value)


def logged(stack: Stack, position: publication_pb2.LogPosition) -> tuple[bytes, dict[str, str]]:
    """Value and headers of a record, read from the log's file beside the process that owns it."""
    with closing(sqlite3.connect(f"file:{stack.data / 'log.sqlite'}?mode=ro", uri=True)) as db:
        value, headers = db.execute(
            'SELECT value, headers FROM records WHERE partition = ? AND "offset" = ?',
            (position.partition, position.offset),
        ).fetchone()
    return value, json.loads(headers)


@contextmanager
def ingestion_stopped(stack: Stack, client: Client) -> Iterator[None]:
    """The log belongs to nobody inside; ingestion serves again afterwards."""
    stack.stop(["ingestion"])
    try:
        yield
    finally:
        stack.start(["ingestion"])
        stack.wait(["ingestion"])
        grpc.channel_ready_future(client.channels["ingestion"]).result(30)


def test_what_was_published_becomes_searchable(client: Client) -> None:
    response = client.publish(paper())
    status = client.settled(response.token)
    assert (status.state, status.outcome) == (PUBLICATION_STATE_SEARCHABLE, "APPLIED")


def test_a_stream_answers_in_order_and_goes_on_after_a_refusal(client: Client) -> None:
    publications = [paper() for _ in range(600)]  # more than the window
    publications[7] = paper(title="")
    publications[8] = paper(revision=0)
    stream = (messages.PublishStreamRequest(publish=request(publication)) for publication in publications)
    answers = list(client.ingestion.PublishStream(stream, timeout=60))
    assert [answer.index for answer in answers] == list(range(600))
    refused = {answer.index: answer.error for answer in answers if answer.HasField("error")}
    assert {index: (error.code, error.field) for index, error in refused.items()} == {
        7: (3, "publication.title"),
        8: (3, "publication.revision"),
    }
    positions = [answer.accepted.position for answer in answers if answer.HasField("accepted")]
    for partition in (0, 1):
        offsets = [position.offset for position in positions if position.partition == partition]
        assert offsets == sorted(offsets)
    assert client.settled(answers[-1].accepted.token).state == PUBLICATION_STATE_SEARCHABLE


def test_a_stream_goes_on_after_an_event_that_cannot_be_parsed(client: Client) -> None:
    """Raw bytes, as a client in another language may send them."""
    sound = [messages.PublishStreamRequest(publish=request(paper())).SerializeToString() for _ in range(2)]
    broken_text = messages.PublishStreamRequest(publish=request(paper(title="TITLE"))).SerializeToString()
    sent = [sound[0], broken_text.replace(b"TITLE", b"TI\xffLE"), sound[1][:-3], sound[1]]
    call = client.channels["ingestion"].stream_stream(
        "/citewell.ingestion.v1.IngestionService/PublishStream",
        request_serializer=bytes,
        response_deserializer=messages.PublishStreamResponse.FromString,
    )
    answers = list(call(iter(sent), timeout=30))
    assert [answer.WhichOneof("result") for answer in answers] == ["accepted", "error", "error", "accepted"]
    first, second = answers[1].error, answers[2].error
    assert (first.code, first.reason, first.field) == (3, "BROKEN_UTF8", "publication.title")
    assert first.message == r"publication.title is 'TI\\xffLE'; expected text in UTF-8"
    assert (second.code, second.reason) == (3, "MALFORMED_MESSAGE")


def test_a_stream_for_the_ledger_names_broken_text_too(client: Client) -> None:
    event = messages.PublishRequest(publication=publication_to_message(paper(title="TITLE"))).publication
    load = ledger_pb2.LoadPublicationsRequest(events=[publication_pb2.PublicationEvent(publication=event)])
    call = client.channels["profiler"].stream_unary(
        "/citewell.profiler.v1.LedgerService/LoadPublications",
        request_serializer=bytes,
        response_deserializer=ledger_pb2.LoadPublicationsResponse.FromString,
    )
    refused = refusal(lambda: call(iter([load.SerializeToString().replace(b"TITLE", b"TI\xffLE")]), timeout=30))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "events[0].publication.title")


def test_a_stream_answers_each_event_before_the_next_is_sent(client: Client) -> None:
    answered: list[int] = []

    def stream() -> Iterator[messages.PublishStreamRequest]:
        for number in range(3):
            wait_until(lambda expected=number: len(answered) == expected, "the answer to the event before")  # type: ignore[misc]
            yield messages.PublishStreamRequest(publish=request(paper()))

    for answer in client.ingestion.PublishStream(stream(), timeout=30):
        answered.append(answer.index)
    assert answered == [0, 1, 2]


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (messages.PublishRequest(), "body"),
        (request(Publication("", 1, "T")), "publication.paper_id"),
        (request(Publication("p", 1, "T", reference_ids=(" x",))), "publication.reference_ids[0]"),
        (messages.PublishRequest(retraction=publication_pb2.Retraction(paper_id="p")), "retraction.revision"),
        (request(Publication("p", 1, "T", abstract="x" * 60_000)), "publication.abstract"),
        (request(Publication("p", 1, "T", authors=("x" * 501,))), "publication.authors[0]"),
        (request(Publication("p", 1, "T", external_ids=(ExternalId("doi", "1"),) * 101)), "publication.external_ids"),
        (
            request(Publication("p", 1, "T", passages=(Passage("[1]", (CitationMarker(0, 3, ("c",) * 10_001),)),))),
            "publication.passages[0].markers",
        ),
        (messages.PublishRequest(retraction=publication_pb2.Retraction(revision=1)), "retraction.paper_id"),
    ],
)
def test_what_can_never_be_applied_is_refused(client: Client, broken: messages.PublishRequest, field: str) -> None:
    refused = refusal(lambda: client.ingestion.Publish(broken, timeout=30))
    assert (refused.code, refused.field, refused.infos) == ("INVALID_ARGUMENT", field, 1)


def test_an_event_that_is_too_large_is_refused(client: Client) -> None:
    large = request(paper())
    for _ in range(150):
        large.publication.vectors.add(values=bytes(1 << 16))
    refused = refusal(lambda: client.ingestion.Publish(large, timeout=30))
    assert (refused.reason, refused.field) == ("EVENT_TOO_LARGE", "publication")
    large.publication.ClearField("vectors")
    large.publication.vectors.add(values=bytes((1 << 16) + 1))
    assert refusal(lambda: client.ingestion.Publish(large, timeout=30)).field == "publication.vectors[0].values"


def test_a_repeated_request_is_the_same_event_and_other_content_is_not(client: Client) -> None:
    first, again, other = paper(), paper(), paper()
    ids = [client.publish(body, request_id="r").event_id for body in (first, again, first, other)]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3


def test_fields_that_we_do_not_know_are_kept(stack: Stack, client: Client) -> None:
    unknown = b"\xa2\x06\x05hello"  # field 100
    publication = publication_pb2.Publication.FromString(publication_to_message(paper()).SerializeToString() + unknown)
    response = client.ingestion.Publish(messages.PublishRequest(publication=publication), timeout=30)
    event = publication_pb2.PublicationEvent.FromString(logged(stack, response.position)[0])
    assert unknown in event.publication.SerializeToString()


def test_the_publishers_trace_goes_on_in_the_log(stack: Stack, client: Client) -> None:
    trace = uuid.uuid4().hex
    header = ("traceparent", f"00-{trace}-00f067aa0ba902b7-01")
    response = client.ingestion.Publish(request(paper()), timeout=30, metadata=[header])
    _, headers = logged(stack, response.position)
    assert headers["traceparent"].split("-")[1] == trace
    assert headers["event-id"] == response.event_id


def test_broken_tokens_are_refused(client: Client) -> None:
    good = client.publish(paper())
    position = LogPosition(good.position.log_id, good.position.partition, good.position.offset)
    beyond = LogPosition(position.log_id, position.partition, position.offset + 1000)
    no_such_partition = LogPosition(position.log_id, 99, 0)
    broken = ["", "x", good.token[:-3], good.token + "é", base64.urlsafe_b64encode(json.dumps([1]).encode()).decode()]
    for token in (*broken, encode_token(beyond, ""), encode_token(no_such_partition, "")):
        asked = messages.GetPublicationStatusRequest(token=token)
        refused = refusal(lambda: client.ingestion.GetPublicationStatus(asked, timeout=30))  # noqa: B023
        assert (refused.code, refused.field, refused.reason) == ("INVALID_ARGUMENT", "token", "INVALID_TOKEN")
    foreign = messages.GetPublicationStatusRequest(token=encode_token(LogPosition("other", 0, 0), ""))
    refused = refusal(lambda: client.ingestion.GetPublicationStatus(foreign, timeout=30))
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "LOG_REPLACED")


def test_events_are_accepted_while_the_ledger_is_gone(stack: Stack, client: Client) -> None:
    client.settled(client.publish(paper()).token)
    stack.kill("profiler")
    response = client.publish(paper())
    stack.start(["profiler"])
    assert client.settled(response.token, seconds=60).state == PUBLICATION_STATE_SEARCHABLE


def test_waiting_ends_at_the_deadline_with_the_state_so_far(stack: Stack, client: Client) -> None:
    os.kill(stack.processes["index"].pid, signal.SIGSTOP)
    try:
        response = client.publish(paper())
        asked = messages.GetPublicationStatusRequest(token=response.token, wait=True)
        status = client.ingestion.GetPublicationStatus(asked, timeout=10.0)
        assert status.state in (PUBLICATION_STATE_ACCEPTED, messages.PUBLICATION_STATE_APPLIED)
    finally:
        os.kill(stack.processes["index"].pid, signal.SIGCONT)
    assert client.settled(response.token).state == PUBLICATION_STATE_SEARCHABLE


def test_a_second_process_is_refused_and_takes_nothing(stack: Stack, client: Client) -> None:
    """Also while the owner stands still: whoever is stopped goes on where it was."""
    owner = stack.processes["ingestion"].pid
    accepted = [client.publish(paper()) for _ in range(20)]
    os.kill(owner, signal.SIGSTOP)
    try:
        second = Stack(stack.data, choose_ports(0), settings={"CITEWELL_INGESTION__LOG__OWNER_WAIT_SECONDS": "0.2"})
        second.start(["ingestion"])
        assert second.processes["ingestion"].wait(60) != 0
        assert f"in use by process {owner}" in second.last_words("ingestion")
    finally:
        os.kill(owner, signal.SIGCONT)
    accepted += [client.publish(paper()) for _ in range(20)]
    assert all(client.settled(each.token).outcome == "APPLIED" for each in accepted)


def test_metrics_tell_how_far_it_came(stack: Stack, client: Client) -> None:
    port = choose_ports(0)["reranker"]
    usual = stack.settings
    with ingestion_stopped(stack, client):
        stack.settings = {**usual, "CITEWELL_INGESTION__METRICS_PORT": str(port)}
    try:
        client.settled(client.publish(paper()).token)

        def told() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        assert 'citewell_published_total{kind="publication"' in told()
        for gauge in ("citewell_lag", "citewell_watermark"):
            line = re.compile(rf'^{gauge}{{[^}}]*partition="1"', re.MULTILINE)
            wait_until(lambda line=line: line.search(told()) is not None, gauge)  # type: ignore[misc]
    finally:
        with ingestion_stopped(stack, client):
            stack.settings = usual


def test_another_number_of_partitions_is_refused_in_one_line(stack: Stack, client: Client) -> None:
    with ingestion_stopped(stack, client):
        other = Stack(stack.data, choose_ports(0), settings={"CITEWELL_INGESTION__LOG__PARTITIONS": "3"})
        other.start(["ingestion"])
        assert other.processes["ingestion"].wait(60) != 0
        assert "2 partitions" in other.last_words("ingestion")


def test_info_tells_of_the_log(stack: Stack, client: Client) -> None:
    response = client.publish(paper())
    client.settled(response.token)
    info = client.ingestion.Info(messages.InfoRequest(), timeout=30)
    assert (info.log_kind, info.log_id, len(info.partitions)) == ("local", response.position.log_id, 2)
    partition = info.partitions[response.position.partition]
    assert partition.first_offset <= response.position.offset < partition.end_offset
    wait_until(
        lambda: (
            client.ingestion.Info(messages.InfoRequest(), timeout=30)
            .partitions[response.position.partition]
            .committed_offset
            > response.position.offset
        ),
        "the record's acknowledgement",
    )
