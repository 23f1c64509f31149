"""The order in which the places of a draft are answered, and cancellation when the caller disconnects."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from citewell.recommender.manuscripts import answer_manuscript
from citewell.recommender.v1 import recommender_pb2 as messages

DRAFT = messages.RecommendManuscriptRequest(
    files=[
        messages.ManuscriptFile(name="a.tex", content=rb"First \cite{known, ?}. Then \cite{?}. At last \cite{}."),
        messages.ManuscriptFile(name="a.bib", content=b"@misc{known, title={Known}}"),
    ]
)


async def _nothing(request: messages.RecommendRequest) -> messages.RecommendResult:
    return messages.RecommendResult(response=messages.RecommendResponse())


async def test_places_that_cite_nothing_yet_come_first() -> None:
    async with aclosing(answer_manuscript(DRAFT, _nothing, in_flight=1)) as answers:
        told = [answer async for answer in answers]
    assert told[0].outline.places == 3
    assert [answer.place for answer in told[1:]] == [1, 2, 0]


async def test_a_closed_stream_cancels_what_is_in_flight_and_starts_nothing_more() -> None:
    asked = cancelled = 0
    never = asyncio.Event()

    async def answering(request: messages.RecommendRequest) -> messages.RecommendResult:
        nonlocal asked, cancelled
        asked += 1
        if asked == 1:
            return messages.RecommendResult(response=messages.RecommendResponse())
        try:
            await never.wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        raise AssertionError

    async with aclosing(answer_manuscript(DRAFT, answering, in_flight=2)) as answers:
        assert (await anext(answers)).HasField("outline")
        assert (await anext(answers)).HasField("result")
        await asyncio.sleep(0)
    assert (asked, cancelled) == (3, 2)
