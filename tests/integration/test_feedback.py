"""Feedback in a log of its own, on SQLite and on Kafka, and its export as a data set of the lab."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from citewell.ingestion.feedback import FeedbackLog
from citewell.ingestion.server import open_feedback_log
from citewell.ingestion.settings import IngestionSettings, LogSettings
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.lab.dataset import read_dataset
from citewell.lab.feedback import Shares, export
from citewell.lab.protocol import Mode, make_task
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.types.v1 import feedback_pb2
from tests.lab_sets import invented, write_lines
from tests.servers.kafka_topics import fresh_topics


@pytest.fixture(params=["local", "kafka"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> IngestionSettings:
    log = LogSettings()
    if request.param == "kafka":
        log = LogSettings(kind="kafka", kafka=fresh_topics(request.getfixturevalue("kafka_broker"), 2))
    return IngestionSettings(data=tmp_path, log=log)


@pytest.fixture
async def opened(settings: IngestionSettings) -> AsyncIterator[Callable[[], FeedbackLog]]:
    """Opens the log; stops the one that was opened before."""
    logs: list[FeedbackLog] = []

    async def stop() -> None:
        if logs:
            await logs.pop().stop()

    def make() -> FeedbackLog:
        logs.append(FeedbackLog(partial(open_feedback_log, settings)))
        return logs[-1]

    yield make
    while logs:
        await stop()


def event(*chosen: str, request_id: str = "", **text: str) -> messages.RecordFeedbackRequest:
    feedback = feedback_pb2.Feedback(shown=["p001", "p002", "p003"], chosen=chosen)
    if text:
        feedback.text.CopyFrom(feedback_pb2.FeedbackText(**text))
    return messages.RecordFeedbackRequest(feedback=feedback, request_id=request_id)


async def listed(log: FeedbackLog, page_size: int = 0) -> list[feedback_pb2.Feedback]:
    found, request = [], messages.ListFeedbackRequest(page_size=page_size)
    while True:
        page = await log.list(request)
        assert len(page.feedback) <= (page_size or 100)
        found += page.feedback
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def test_what_was_recorded_is_listed_in_order_also_after_a_restart(opened: Callable[[], FeedbackLog]) -> None:
    log = opened()
    ids = [(await log.record(event(f"p00{number}"))).event_id for number in (1, 2, 3)]
    assert [each.event_id for each in await listed(log, page_size=1)] == ids
    assert [list(each.chosen) for each in await listed(log)] == [["p001"], ["p002"], ["p003"]]
    assert all(each.recorded.seconds for each in await listed(log))
    await log.stop()
    again = opened()
    assert [each.event_id for each in await listed(again, page_size=2)] == ids


async def test_a_repeated_request_has_the_same_id(opened: Callable[[], FeedbackLog]) -> None:
    log = opened()
    requests = [event("p001", request_id="r"), event("p001", request_id="r"), event("p002", request_id="r")]
    first, again, other = await asyncio.gather(*map(log.record, requests))
    assert first.event_id == again.event_id != other.event_id


async def test_wrong_requests_are_named(opened: Callable[[], FeedbackLog]) -> None:
    log = opened()
    with pytest.raises(InvalidField, match=r"feedback\.shown"):
        await log.record(messages.RecordFeedbackRequest())
    with pytest.raises(InvalidField, match="page_size"):
        await log.list(messages.ListFeedbackRequest(page_size=1001))
    with pytest.raises(InvalidField, match="page_token"):
        await log.list(messages.ListFeedbackRequest(page_token="no token"))
    with pytest.raises(InvalidField, match="at most 1048576 bytes"):
        await log.record(event("p001", context="x" * (1 << 20)))


async def test_records_that_are_no_feedback_are_left_out(
    settings: IngestionSettings, opened: Callable[[], FeedbackLog]
) -> None:
    log = opened()
    ids = [(await log.record(event("p001"))).event_id]
    await log.stop()
    foreign = open_feedback_log(settings)
    await foreign.start()
    for value in (b"\xff of another program", b""):
        await foreign.append("someone", value, {})
    await foreign.stop()
    again = opened()
    ids.append((await again.record(event("p002"))).event_id)
    for page_size in (1, 2, 0):
        assert sorted(each.event_id for each in await listed(again, page_size)) == sorted(ids)


@pytest.mark.parametrize("settings", ["kafka"], indirect=True)
async def test_a_missing_topic_says_what_makes_it(settings: IngestionSettings) -> None:
    kafka = settings.log.kafka.model_copy(update={"feedback_topic": "nobody-made-this"})
    log = settings.log.model_copy(update={"kafka": kafka})
    feedback = FeedbackLog(partial(open_feedback_log, settings.model_copy(update={"log": log})))
    with pytest.raises(FailedPrecondition, match="citewell topics apply"):
        await feedback.record(event("p001"))
    await feedback.stop()


async def test_the_local_log_is_opened_only_when_feedback_is_recorded(tmp_path: Path) -> None:
    log = FeedbackLog(partial(open_feedback_log, IngestionSettings(data=tmp_path)))
    await log.stop()
    assert not (tmp_path / "feedback.sqlite").exists()


async def test_an_export_is_a_data_set_whose_test_queries_are_the_choices(
    opened: Callable[[], FeedbackLog], tmp_path: Path
) -> None:
    corpus = write_lines(tmp_path / "corpus", *invented())
    log = opened()
    context = "We build on parsers TARGETCIT and others OTHERCIT."
    await log.record(event("p002", request_id="r", context=context, title="My draft"))
    await log.record(event("p002", request_id="r", context=context, title="My draft"))  # repeated, counts once
    await log.record(event("p001", "p003", context=context, title="My draft"))
    await log.record(event("p001"))  # its text was not kept
    await log.record(event())  # shown, nothing chosen
    out = tmp_path / "out"
    told = export(await listed(log), corpus, out, Shares(validation=0.0))
    assert (told.events, told.with_choice, told.contexts, told.without_text) == (4, 3, 3, 1)
    assert told.reciprocal_rank == pytest.approx((1 / 2 + 1 + 1) / 3)
    data = read_dataset(out)
    assert not data.rejects
    before = read_dataset(corpus)
    assert len(data.papers) == len(before.papers) + 1
    assert len(data.contexts) == len(before.contexts) + 3
    task = make_task(data, "test", Mode.INDUCTIVE)
    assert sorted(data.papers.ids[int(row)] for row in data.contexts.cited[task.queries]) == ["p001", "p002", "p003"]
    assert len(task.knowledge) == len(before.contexts)
    choices = [json.loads(line) for line in (out / "choices.jsonl").read_text().splitlines()]
    assert [each.get("chosen", []) for each in choices] == [["p002"], ["p001", "p003"], ["p001"], []]
