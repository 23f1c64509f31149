"""Every kind of bad input: the call, and the error that names the field and the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.types.v1 import paper_pb2, publication_pb2
from tests.e2e.client import DEADLINE, Client, Refusal
from tests.e2e.conftest import Running

MARKED = "as TARGETCIT has shown"


def recommend(
    context: str = MARKED, title: str = "", abstract: str = "", **options: Any
) -> tuple[str, messages.RecommendRequest]:
    query = messages.Query(context=context, title=title, abstract=abstract)
    return "Recommend", messages.RecommendRequest(query=query, options=messages.Options(**options))


def explain(paper_id: str) -> tuple[str, messages.ExplainRequest]:
    return "Explain", messages.ExplainRequest(query=messages.Query(context=MARKED), paper_id=paper_id)


def publish(**fields: Any) -> tuple[str, ingestion_pb2.PublishRequest]:
    publication = publication_pb2.Publication(**{"paper_id": "bad", "revision": 1, "title": "A title"} | fields)
    return "Publish", ingestion_pb2.PublishRequest(publication=publication)


def dates(**fields: Any) -> paper_pb2.SearchFilter:
    return paper_pb2.SearchFilter(**fields)


def day(year: int, month: int = 0, day_of_month: int = 0) -> paper_pb2.PartialDate:
    return paper_pb2.PartialDate(year=year, month=month, day=day_of_month)


# name: (call, code, reason, field, part of the message)
TABLE: dict[str, tuple[tuple[str, Message], str, str, str, str]] = {
    "empty query": (recommend(""), "INVALID_ARGUMENT", "EMPTY_QUERY", "query", "a context, a title or an abstract"),
    "blank query": (recommend("", " \n"), "INVALID_ARGUMENT", "EMPTY_QUERY", "query", "a context"),
    "no marker": (
        recommend("nothing is marked"),
        "INVALID_ARGUMENT",
        "MARKER_COUNT",
        "query.context",
        "text with 0 TARGETCIT: nothing is marked",
    ),
    "two markers": (
        recommend("TARGETCIT or TARGETCIT"),
        "INVALID_ARGUMENT",
        "MARKER_COUNT",
        "query.context",
        "exactly one TARGETCIT",
    ),
    "oversized context": (
        recommend(MARKED + "x" * 20_000),
        "INVALID_ARGUMENT",
        "TEXT_TOO_LONG",
        "query.context",
        "20022 characters",
    ),
    "oversized title": (recommend(title="x" * 2_001), "INVALID_ARGUMENT", "TEXT_TOO_LONG", "query.title", "2001"),
    "oversized abstract": (
        recommend(abstract="x" * 50_001),
        "INVALID_ARGUMENT",
        "TEXT_TOO_LONG",
        "query.abstract",
        "50001",
    ),
    "top_k too large": (recommend(top_k=101), "INVALID_ARGUMENT", "OUT_OF_RANGE", "options.top_k", "'101'"),
    "top_k negative": (recommend(top_k=-1), "INVALID_ARGUMENT", "OUT_OF_RANGE", "options.top_k", "'-1'"),
    "k too large": (recommend(candidates=1001), "INVALID_ARGUMENT", "OUT_OF_RANGE", "options.candidates", "'1001'"),
    "too much evidence": (
        recommend(evidence_per_item=21),
        "INVALID_ARGUMENT",
        "OUT_OF_RANGE",
        "options.evidence_per_item",
        "0 to 20",
    ),
    "diversity NaN": (recommend(diversity=math.nan), "INVALID_ARGUMENT", "OUT_OF_RANGE", "options.diversity", "'nan'"),
    "inverted years": (
        recommend(filter=dates(year_from=2020, year_to=2010)),
        "INVALID_ARGUMENT",
        "INVERTED_DATES",
        "options.filter.year_from",
        "'2020'",
    ),
    "published_before before year_from": (
        recommend(filter=dates(year_from=2020, published_before=day(2019, 5))),
        "INVALID_ARGUMENT",
        "INVERTED_DATES",
        "options.filter.published_before",
        "'2019-05'",
    ),
    "too many excluded": (
        recommend(filter=paper_pb2.SearchFilter(excluded_ids=[f"p{number}" for number in range(10_001)])),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "options.filter.excluded_ids",
        "at most 10000",
    ),
    "no such day": (
        recommend(filter=dates(published_before=day(2023, 2, 29))),
        "INVALID_ARGUMENT",
        "INVALID_DATE",
        "options.filter.published_before",
        "'2023-2-29'",
    ),
    "knowledge as of no date": (
        recommend(as_of=messages.AS_OF_KNOWLEDGE),
        "INVALID_ARGUMENT",
        "DATE_MISSING",
        "options.as_of",
        "published_before",
    ),
    "unknown strategy": (recommend(strategy=77), "INVALID_ARGUMENT", "INVALID_FIELD", "options.strategy", "'77'"),
    "no probability": (
        recommend(min_confidence=1.5),
        "INVALID_ARGUMENT",
        "OUT_OF_RANGE",
        "options.min_confidence",
        "'1.5'",
    ),
    "a place for a whole draft": (
        (
            "Recommend",
            messages.RecommendRequest(
                query=messages.Query(context="as TARGETCIT has shown"),
                options=messages.Options(strategy=messages.STRATEGY_GLOBAL),
            ),
        ),
        "INVALID_ARGUMENT",
        "EMPTY_QUERY",
        "query.title",
        "STRATEGY_GLOBAL reads no context",
    ),
    "no watermark token": (
        recommend(min_watermark=["nonsense"]),
        "INVALID_ARGUMENT",
        "BAD_TOKEN",
        "options.min_watermark",
        "'nonsense'",
    ),
    "explain nothing": (explain(""), "INVALID_ARGUMENT", "INVALID_FIELD", "paper_id", "the id of a paper"),
    "explain an unknown paper": (explain("nobody"), "NOT_FOUND", "NOT_FOUND", "", "'nobody'"),
    "empty batch": (
        ("RecommendBatch", messages.RecommendBatchRequest()),
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "requests",
        "0 requests",
    ),
    "search vector with NaN": (
        ("Search", index_pb2.SearchRequest(vector=[math.nan] * 384, limit=10)),
        "INVALID_ARGUMENT",
        "NOT_FINITE",
        "vector",
        "NaN",
    ),
    "search limit": (
        ("Search", index_pb2.SearchRequest(vector=[0.1] * 384, limit=3001)),
        "INVALID_ARGUMENT",
        "",
        "limit",
        "3001",
    ),
    "page token": (
        ("ListPapers", index_pb2.ListPapersRequest(page_token="nonsense")),
        "INVALID_ARGUMENT",
        "",
        "page_token",
        "nonsense",
    ),
    "page size": (
        ("ListPapers", index_pb2.ListPapersRequest(page_size=1001)),
        "INVALID_ARGUMENT",
        "",
        "page_size",
        "1001",
    ),
    "publish nothing": (("Publish", ingestion_pb2.PublishRequest()), "INVALID_ARGUMENT", "", "body", "publication"),
    "revision 0": (publish(revision=0), "INVALID_ARGUMENT", "", "publication.revision", "'0'"),
    "no paper id": (publish(paper_id=""), "INVALID_ARGUMENT", "", "publication.paper_id", "1 to 256 bytes"),
    "no title": (publish(title=" "), "INVALID_ARGUMENT", "", "publication.title", "some text"),
    "marker outside its passage": (
        publish(
            passages=[
                publication_pb2.Passage(
                    text="short",
                    markers=[publication_pb2.CitationMarker(offset=3, length=9, reference_ids=["x"])],
                )
            ]
        ),
        "INVALID_ARGUMENT",
        "",
        "publication.passages[0].markers[0]",
        "3+9",
    ),
    "masked context without marker": (
        publish(masked_contexts=[publication_pb2.MaskedContext(text="nothing", cited_id="x")]),
        "INVALID_ARGUMENT",
        "",
        "publication.masked_contexts[0].text",
        "0 TARGETCIT",
    ),
    "status of no token": (
        ("GetPublicationStatus", ingestion_pb2.GetPublicationStatusRequest(token="nonsense")),
        "INVALID_ARGUMENT",
        "",
        "token",
        "nonsense",
    ),
}


def _call(client: Client, method: str) -> Callable[..., Any]:
    stubs = (client.recommender, client.index, client.ingestion)
    return next(getattr(stub, method) for stub in stubs if hasattr(stub, method))


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_field_is_named_with_its_value(running: Running, name: str) -> None:
    (method, request), code, reason, field, says = TABLE[name]
    with pytest.raises(grpc.RpcError) as error:
        _call(running.client, method)(request, timeout=DEADLINE)
    refusal = Refusal.of(error.value)
    assert (refusal.code, refusal.field) == (code, field), refusal
    assert refusal.reason == reason or not reason, refusal
    assert says in refusal.message
    assert refusal.infos == 1
    assert len(refusal.message) < 400  # the message must not repeat the whole draft
    print(f"{name}: {method} -> {refusal.code} {refusal.reason}: {refusal.message}")


def test_broken_text_is_named_by_its_path(running: Running) -> None:
    call = running.client.channels["recommender"].unary_unary("/citewell.recommender.v1.RecommenderService/Recommend")
    sound = messages.RecommendRequest(query=messages.Query(context=MARKED, title="tXtle")).SerializeToString()
    with pytest.raises(grpc.RpcError) as error:
        call(sound.replace(b"tXtle", b"t\xfftle"), timeout=DEADLINE)
    refusal = Refusal.of(error.value)
    assert (refusal.code, refusal.reason, refusal.field) == ("INVALID_ARGUMENT", "BROKEN_UTF8", "query.title")


def test_a_context_longer_than_the_window_is_cut_around_its_marker(running: Running) -> None:
    asked = running.queries[0].query
    far = "entirely unrelated words about the weather " * 200
    long = messages.Query(context=f"{far} {asked.context} {far}", title=asked.title, abstract=asked.abstract)
    answer = running.client.recommend(long, messages.Options(rerank=False))
    assert [each.reason for each in answer.degraded] == ["CONTEXT_CUT"]
    plain = {item.paper.id for item in running.client.recommend(asked, messages.Options(rerank=False)).items}
    assert plain & {item.paper.id for item in answer.items}  # the words near the marker still decide
