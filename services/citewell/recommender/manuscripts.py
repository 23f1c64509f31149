"""RecommendManuscript: a draft's places, answered as they are ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice

from citewell.manuscripts.bibliography import DraftKeys, to_bibtex, to_csl
from citewell.manuscripts.drafts import Draft, Format, UnreadableDraft, read_files, read_text
from citewell.manuscripts.flow import Place
from citewell.manuscripts.need import NeedModel, read_need_model
from citewell.recommender.queries import DEFAULT_TOP_K
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import InvalidField
from citewell.scholarly.limits import MAX_TOP_K
from citewell.types.messages import paper_from_message
from citewell.types.v1 import paper_pb2

Answering = Callable[[messages.RecommendRequest], Awaitable[messages.RecommendResult]]

_FORMATS = {
    messages.MANUSCRIPT_FORMAT_UNSPECIFIED: None,
    messages.MANUSCRIPT_FORMAT_LATEX: Format.LATEX,
    messages.MANUSCRIPT_FORMAT_MARKDOWN: Format.MARKDOWN,
    messages.MANUSCRIPT_FORMAT_PLAIN: Format.PLAIN,
    messages.MANUSCRIPT_FORMAT_DOCX: Format.WORD,
}


async def answer_manuscript(
    request: messages.RecommendManuscriptRequest, answering: Answering, in_flight: int
) -> AsyncGenerator[messages.RecommendManuscriptResponse, None]:
    """The outline, then every place as it is ready.

    Marked places that cite nothing yet go first, in reading order, then marked places that do; suggested sentences
    come last, the most needy first. Queries in flight grow from one to `in_flight` with the answers, so that the first
    answer takes no longer than that of a single query.

    A caller that leaves closes the stream; what is still in flight is then cancelled.
    """
    draft = await asyncio.to_thread(_read, request)
    yield messages.RecommendManuscriptResponse(outline=_outline(draft, request))
    numbered = sorted(enumerate(draft.places), key=lambda each: (each[1].need is not None, bool(each[1].own_keys)))
    keys = DraftKeys(draft.bibliography, draft.used_keys)
    waiting = iter(numbered)
    async with _cancelled_at_the_end() as running:

        def start(most: int) -> None:
            for number, place in islice(waiting, max(most - len(running), 0)):
                running.add(asyncio.create_task(_answer_place(request, draft, number, place, answering)))

        allowed = 1
        start(allowed)
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                running.discard(task)
                allowed = min(allowed + 1, in_flight)
                start(allowed)
                answer = task.result()
                if request.references:
                    _add_references(answer, keys)
                if request.options.view != paper_pb2.PAPER_VIEW_FULL:
                    for item in answer.result.response.items:
                        item.paper.ClearField("abstract")
                yield answer


@asynccontextmanager
async def _cancelled_at_the_end() -> AsyncIterator[set[asyncio.Task[messages.RecommendManuscriptResponse]]]:
    running: set[asyncio.Task[messages.RecommendManuscriptResponse]] = set()
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _read(request: messages.RecommendManuscriptRequest) -> Draft:
    if request.format not in _FORMATS:
        raise InvalidField("format", request.format, "a known format")
    if bool(request.text.strip()) == bool(request.files):
        raise InvalidField("text", "given beside files" if request.files else "", "the draft as text, or as files")
    names = [file.name for file in request.files]
    if len(set(names)) < len(names):
        raise InvalidField("files", sorted(name for name in set(names) if names.count(name) > 1), "each name once")
    format_ = _FORMATS[request.format]
    suggest = _need_model(request)
    try:
        if request.files:
            return read_files({file.name: file.content for file in request.files}, request.main, format_, suggest)
        return read_text(request.text, format_, suggest)
    except UnreadableDraft as error:
        raise InvalidField(error.field, error.value, error.wanted) from None


def _need_model(request: messages.RecommendManuscriptRequest) -> NeedModel | None:
    if not 0 <= request.min_need <= 1:
        raise InvalidField("min_need", request.min_need, "0 (the scorer's threshold) to 1")
    if request.min_need and not request.suggest:
        raise InvalidField("min_need", request.min_need, "0, because suggest is not set")
    if not request.suggest:
        return None
    model = read_need_model()
    return replace(model, threshold=request.min_need) if request.min_need else model


def _outline(draft: Draft, request: messages.RecommendManuscriptRequest) -> messages.ManuscriptOutline:
    return messages.ManuscriptOutline(
        title=request.title or draft.title,
        abstract=request.abstract or draft.abstract,
        places=len(draft.places),
        places_left_out=draft.left_out,
        suggested=sum(place.need is not None for place in draft.places),
        problems=[
            messages.ManuscriptProblem(file=each.file, line=each.line, column=each.column, message=each.message)
            for each in draft.problems
        ],
    )


async def _answer_place(
    request: messages.RecommendManuscriptRequest, draft: Draft, number: int, place: Place, answering: Answering
) -> messages.RecommendManuscriptResponse:
    top_k = request.options.top_k or DEFAULT_TOP_K
    options = messages.Options()
    options.CopyFrom(request.options)
    # What the place cites already is left out behind the ranking, so as many more are asked for.
    options.top_k = min(top_k + len(place.own_keys), MAX_TOP_K)
    options.view = paper_pb2.PAPER_VIEW_FULL  # other ids, to recognise what the draft cites
    query = messages.Query(
        context=place.context, title=request.title or draft.title, abstract=request.abstract or draft.abstract
    )
    result = await answering(messages.RecommendRequest(query=query, options=options))
    answer = messages.RecommendManuscriptResponse(
        place=number,
        offset=place.citation.offset,
        length=place.citation.length,
        context=place.context,
        file=place.citation.file,
        line=place.line,
        column=place.column,
        own_keys=place.own_keys,
        result=result,
    )
    if place.need is not None:
        answer.suggested.need = place.need
        answer.suggested.insert_at = place.insert_at
    if result.HasField("response"):
        _mark_what_is_cited(answer, draft, place, top_k)
    return answer


def _mark_what_is_cited(answer: messages.RecommendManuscriptResponse, draft: Draft, place: Place, top_k: int) -> None:
    """Leaves out what the place cites itself, and tells what the draft cites elsewhere."""
    response = answer.result.response
    kept: list[messages.Item] = []
    for item in response.items:
        keys = draft.bibliography.keys_of(paper_from_message(item.paper))
        if set(keys) & set(place.own_keys) or len(kept) == top_k:
            continue
        if keys:
            answer.cited_elsewhere.append(messages.CitedElsewhere(paper_id=item.paper.id, keys=keys))
        item.rank = len(kept) + 1
        kept.append(item)
    kept = [messages.Item.FromString(item.SerializeToString()) for item in kept]
    del response.items[:]
    response.items.extend(kept)


def _add_references(answer: messages.RecommendManuscriptResponse, keys: DraftKeys) -> None:
    papers = [paper_from_message(item.paper) for item in answer.result.response.items]
    for paper, key in zip(papers, keys.of(papers), strict=True):
        csl = json.dumps(to_csl([paper], [key]), ensure_ascii=False)
        answer.references.add(paper_id=paper.id, key=key, bibtex=to_bibtex([paper], [key]), csl_json=csl)
