"""The order in which the places of a draft are answered, and cancellation when the caller disconnects."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from citewell.recommender.manuscripts import answer_manuscript
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import InvalidField
from citewell.types.v1 import paper_pb2

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


async def test_nothing_competes_with_the_first_answer_and_then_places_are_asked_for_together() -> None:
    in_flight: list[int] = []
    now = 0

    async def answering(request: messages.RecommendRequest) -> messages.RecommendResult:
        nonlocal now
        now += 1
        in_flight.append(now)
        await asyncio.sleep(0)
        now -= 1
        return messages.RecommendResult(response=messages.RecommendResponse())

    draft = messages.RecommendManuscriptRequest(text="A claim [?]. " * 40)
    async with aclosing(answer_manuscript(draft, answering, in_flight=4)) as answers:
        told = [answer.place async for answer in answers if answer.HasField("result")]
    assert sorted(told) == list(range(40))
    assert (in_flight[0], in_flight[1], max(in_flight)) == (1, 1, 4)


async def _one_paper(request: messages.RecommendRequest) -> messages.RecommendResult:
    paper = paper_pb2.Paper(id="p1", title="Great parsers", authors=["Ana Müller"], abstract="Long.")
    return messages.RecommendResult(response=messages.RecommendResponse(items=[messages.Item(rank=1, paper=paper)]))


async def _told(request: messages.RecommendManuscriptRequest) -> list[messages.RecommendManuscriptResponse]:
    async with aclosing(answer_manuscript(request, _one_paper, in_flight=1)) as answers:
        return [answer async for answer in answers]


async def test_references_are_answered_on_request_with_one_key_in_all_places() -> None:
    request = messages.RecommendManuscriptRequest(text="One [?] and two [?].", references=True)
    _, *answers = await _told(request)
    for answer in answers:
        [reference] = answer.references
        assert (reference.paper_id, reference.key) == ("p1", "mullergreat")
        assert reference.bibtex.startswith("@misc{mullergreat,")
        assert json.loads(reference.csl_json)[0]["id"] == "mullergreat"
        assert answer.result.response.items[0].paper.abstract == ""
    request.references = False
    _, *answers = await _told(request)
    assert not any(answer.references for answer in answers)


async def test_suggested_sentences_are_answered_last_and_say_where_a_citation_goes() -> None:
    sentence = "Recent work has proposed linear attention to reduce the quadratic cost of self-attention."
    request = messages.RecommendManuscriptRequest(text=f"{sentence} Marked [?] it is.", suggest=True)
    outline, marked, suggested = await _told(request)
    assert (outline.outline.places, outline.outline.suggested) == (2, 1)
    assert not marked.HasField("suggested")
    assert request.text[suggested.offset :][: suggested.length] == sentence
    assert request.text[suggested.suggested.insert_at :].startswith(". Marked")
    assert 0.66 <= suggested.suggested.need <= 1


@pytest.mark.parametrize(("suggest", "min_need"), [(True, 1.5), (True, -0.1), (False, 0.5), (True, float("nan"))])
async def test_a_wrong_least_need_is_named(suggest: bool, min_need: float) -> None:
    request = messages.RecommendManuscriptRequest(text="One [?].", suggest=suggest, min_need=min_need)
    with pytest.raises(InvalidField, match="min_need"):
        await _told(request)
