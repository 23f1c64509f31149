"""The recommender's handlers, as far as they can be tested without other services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from citewell.recommender.answers import Answer, Degradation, Reason, Snapshot
from citewell.recommender.queries import Options
from citewell.recommender.recommend import Recommender
from citewell.recommender.server import RecommenderServer
from citewell.recommender.settings import RecommenderSettings
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import Code, InvalidField, Overloaded
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.queries import Query


def settings(**values: object) -> RecommenderSettings:
    return RecommenderSettings(port=0, **values)  # type: ignore[arg-type]


async def test_a_defect_in_one_request_of_a_batch_fails_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def recommend(self: Recommender, query: Query, options: Options, remaining: Callable[[], float]) -> Answer:
        if query.title == "broken":
            raise ZeroDivisionError
        if query.title == "busy":
            raise Overloaded("the index is busy", retry_after_seconds=1.5)
        return Answer((), Snapshot((), "model", "", "", "view", True), (), ())

    monkeypatch.setattr(Recommender, "recommend", recommend)
    server = RecommenderServer(settings())
    await server.start()
    try:
        requests = [messages.RecommendRequest(query=messages.Query(title=title)) for title in ("one", "broken", "busy")]
        answer = await server.RecommendBatch(messages.RecommendBatchRequest(requests=requests), None)
    finally:
        await server.stop()
    assert [result.WhichOneof("result") for result in answer.results] == ["response", "error", "error"]
    error = answer.results[1].error
    assert (error.code, error.reason) == (Code.INTERNAL, "INTERNAL")
    assert "ZeroDivisionError" not in error.message
    assert not error.HasField("retry_delay")
    busy = answer.results[2].error
    assert (busy.code, busy.retry_delay.ToMilliseconds()) == (Code.RESOURCE_EXHAUSTED, 1500)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (messages.Options(top_k=101), "options.top_k"),
        (messages.Options(top_k=-1), "options.top_k"),
        (messages.Options(diversity=2), "options.diversity"),
        (messages.Options(as_of=messages.AS_OF_KNOWLEDGE), "options.as_of"),
    ],
)
async def test_wrong_options_of_a_draft_are_refused_once_and_not_at_every_place(
    options: messages.Options, field: str
) -> None:
    server = RecommenderServer(settings())
    request = messages.RecommendManuscriptRequest(text="A place [?] and another [?].", options=options)
    with pytest.raises(InvalidField) as refused:
        await anext(server.RecommendManuscript(request, None))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (Reason.RERANKER_NO_MODEL, True),
        (Reason.CONTEXT_CUT, True),
        (Reason.NOT_CALIBRATED, True),
        (Reason.RERANK_TIMEOUT, False),
        (Reason.RERANKER_UNAVAILABLE, False),
    ],
)
async def test_calls_are_refused_by_how_long_answers_take_unless_they_waited_for_a_lost_reranker(
    monkeypatch: pytest.MonkeyPatch, reason: Reason, counts: bool
) -> None:
    async def recommend(self: Recommender, query: Query, options: Options, remaining: Callable[[], float]) -> Answer:
        await asyncio.sleep(0.05)
        return Answer((), Snapshot((), "model", "", "", "view", True), (Degradation(reason, "so it is"),), ())

    monkeypatch.setattr(Recommender, "recommend", recommend)
    server = RecommenderServer(settings(longest_queue_seconds=0.01, longest_queue_times=1.0))
    await server.start()
    request = messages.RecommendRequest(query=messages.Query(title="one"))
    try:
        await server.Recommend(request, None)
        answers = await asyncio.gather(*(server.Recommend(request, None) for _ in range(4)), return_exceptions=True)
    finally:
        await server.stop()
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert len(refused) == (2 if counts else 0)  # two calls are always taken


@pytest.mark.parametrize("content", [None, '{"version": 7}'])
def test_a_calibration_that_cannot_be_used_ends_the_start(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "calibration.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UnknownSetting, match="confidence_file"):
        RecommenderServer(settings(confidence_file=str(path)))
