"""A query that cannot be answered is refused with the same field and reason by every service that takes one."""

from __future__ import annotations

import pytest

from citewell.profiler.v1 import profile_query_pb2
from citewell.recommender.v1 import recommender_pb2
from citewell.reranker.v1 import reranker_pb2
from citewell.runtime.errors import InvalidField
from citewell.scholarly.queries import InvalidQuery, Query
from citewell.types.messages import query_from_message

WRONG = [
    (Query(), "", "EMPTY_QUERY"),
    (Query(title=" \n"), "", "EMPTY_QUERY"),
    (Query("no marker here", "t"), "context", "MARKER_COUNT"),
    (Query("TARGETCIT and TARGETCIT"), "context", "MARKER_COUNT"),
    (Query("as in TARGETCIT\u0307 shown"), "context", "MARKER_COUNT"),  # NFC joins the accent to the marker
    (Query("TARGETCIT" + "x" * 20_000), "context", "TEXT_TOO_LONG"),
    (Query(title="x" * 2_001), "title", "TEXT_TOO_LONG"),
    (Query(title="t", abstract="x" * 50_001), "abstract", "TEXT_TOO_LONG"),
]


@pytest.mark.parametrize(
    ("query", "field", "reason"), [*WRONG, (Query(title="t", paper_id="x" * 257), "paper_id", "INVALID_FIELD")]
)
def test_a_query_that_cannot_be_answered_names_its_field(query: Query, field: str, reason: str) -> None:
    with pytest.raises(InvalidQuery) as wrong:
        query.validate()
    assert (wrong.value.field, wrong.value.reason) == (field, reason)


@pytest.mark.parametrize(("query", "field", "reason"), WRONG)
def test_every_service_refuses_it_alike(query: Query, field: str, reason: str) -> None:
    texts = {"context": query.context, "title": query.title, "abstract": query.abstract}
    with pytest.raises(InvalidField) as public:
        query_from_message(recommender_pb2.Query(**texts), "query")
    assert (public.value.field, public.value.reason) == (f"query.{field}" if field else "query", reason)
    for request in (profile_query_pb2.EmbedQueryRequest(**texts), reranker_pb2.RerankRequest(**texts)):
        with pytest.raises(InvalidField) as inner:
            query_from_message(request)
        assert (inner.value.field, inner.value.reason) == (field or "context", reason)


@pytest.mark.parametrize("query", [Query("see TARGETCIT"), Query(title="t"), Query(" \n", abstract="a")])
def test_any_one_text_is_enough(query: Query) -> None:
    query.validate()
