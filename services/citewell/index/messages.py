"""Converts messages of the index to domain objects and back. Errors name the field as in the caller's request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from citewell.index.points import CONTENT, HYBRID, LEXICAL, PROFILE, PaperPoint, SpanPoint, Vector
from citewell.index.queries import DEFAULT_SPANS, Evidence, EvidenceSearch, FoundPaper, FoundSpan, Search, SpanSearch
from citewell.index.second_phase_model import SecondScore
from citewell.index.v1 import index_pb2 as pb
from citewell.runtime.errors import InvalidField
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.types.messages import (
    date_from_message,
    date_to_message,
    filter_from_message,
    paper_from_message,
    paper_to_message,
    second_phase_query_from_message,
)
from citewell.types.v1 import paper_pb2, terms_pb2

_FIELDS: dict[int, str] = {
    pb.SEARCH_FIELD_UNSPECIFIED: PROFILE,
    pb.SEARCH_FIELD_PROFILE: PROFILE,
    pb.SEARCH_FIELD_CONTENT: CONTENT,
    pb.SEARCH_FIELD_LEXICAL: LEXICAL,
    pb.SEARCH_FIELD_HYBRID: HYBRID,
}


def search_from_message(request: pb.SearchRequest) -> Search:
    if request.HasField("sparse"):
        raise InvalidField("sparse", "set", "lexical in its place: sparse is no longer read")
    second = None
    if request.HasField("second_phase"):
        second = second_phase_query_from_message(request.second_phase, len(request.lexical.terms.ids))
    return Search(
        limit=request.limit,
        vector=vector_from_message(request.vector),
        lexical=lexical_from_message(request.lexical) if request.HasField("lexical") else None,
        matched_terms=request.matched_terms,
        searched=_field(request.field),
        filter=filter_from_message(request.filter),
        index_view=request.index_view,
        model_hash=request.model_hash,
        exact=request.exact,
        second=second,
    )


def found_to_message(found: FoundPaper, rank: int, view: int, groups: Sequence[str] = ()) -> pb.ScoredPaper:
    """`groups` names the shares of the second phase's scores."""
    return pb.ScoredPaper(
        paper=paper_to_message(found.paper, full=view == paper_pb2.PAPER_VIEW_FULL),
        score=found.score,
        rank=rank,
        profile_score=found.profile_score,
        lexical_score=found.lexical_score,
        matched=terms_to_message(found.matched) if len(found.matched) else None,
        second_phase=_second_score_to_message(found.second, groups) if found.second else None,
    )


def _second_score_to_message(second: SecondScore, groups: Sequence[str]) -> pb.SecondPhaseScore:
    shares = sorted(zip(groups, second.shares.tolist(), strict=True), key=lambda share: -abs(share[1]))
    return pb.SecondPhaseScore(
        score=second.score,
        first_rank=second.first_rank,
        contributions=[pb.Contribution(name=name, value=value) for name, value in shares],
    )


def evidence_search_from_message(request: pb.SearchEvidenceRequest) -> EvidenceSearch:
    return EvidenceSearch(
        cited_ids=request.cited_ids,
        limit=request.limit_per_paper,
        vector=vector_from_message(request.vector),
        published_before=date_from_message(request.published_before, "published_before"),
        excluded_citing_ids=request.excluded_citing_ids,
        index_view=request.index_view,
        lexical=lexical_from_message(request.lexical) if request.HasField("lexical") else None,
    )


def evidence_to_message(evidence: Evidence) -> pb.Evidence:
    return pb.Evidence(
        citing_id=evidence.span.citing_id,
        cited_id=evidence.span.cited_id,
        text=evidence.span.text,
        published=date_to_message(evidence.span.published),
        score=evidence.score,
        span_offset=evidence.span.span_offset,
        span_length=evidence.span.span_length,
    )


def span_search_from_message(request: pb.SearchSpansRequest) -> SpanSearch:
    return SpanSearch(
        terms=terms_from_message(request.terms),
        vector=vector_from_message(request.vector),
        prefetch=request.prefetch or DEFAULT_SPANS,
        published_before=date_from_message(request.published_before, "published_before"),
        excluded_citing_ids=request.excluded_citing_ids,
        filter=filter_from_message(request.filter),
        index_view=request.index_view,
        model_hash=request.model_hash,
    )


def found_span_to_message(found: FoundSpan) -> pb.FoundSpan:
    return pb.FoundSpan(
        text=found.text,
        okapi_rank=found.okapi_rank,
        plus_rank=found.plus_rank,
        cosine_rank=found.cosine_rank,
        cosine=found.cosine,
        papers=[
            pb.SpanSupport(
                paper_id=each.context.cited_id,
                support=each.support,
                published=date_to_message(each.context.published),
                citing_id=each.context.citing_id,
                text=each.context.text,
                span_offset=each.context.span_offset,
                span_length=each.context.span_length,
            )
            for each in found.papers
        ],
    )


def lexical_from_message(message: terms_pb2.LexicalQuery) -> LexicalQuery:
    return LexicalQuery(terms_from_message(message.terms), message.weight, message.k1, message.b, message.mean_length)


def terms_from_message(message: terms_pb2.Terms) -> Terms:
    return Terms(np.array(message.ids, dtype=np.uint32), np.array(message.values, dtype=np.float32))


def terms_to_message(terms: Terms) -> terms_pb2.Terms:
    return terms_pb2.Terms(ids=terms.ids.tolist(), values=terms.values.tolist())


def _field(field: int) -> str:
    try:
        return _FIELDS[field]
    except KeyError:
        raise InvalidField("field", field, "a SearchField") from None


def vector_from_message(numbers: Any) -> Vector:
    return np.array(numbers, dtype=np.float32)


def _point_vector(values: bytes, field: str) -> Vector:
    if len(values) % 4:
        raise InvalidField(field, f"{len(values)} bytes", "float32 numbers of 4 bytes", reason="WRONG_DIMENSION")
    return np.frombuffer(values, "<f4")


def _bytes(vector: Vector) -> bytes:
    return vector.astype("<f4", copy=False).tobytes()


def paper_point_from_message(message: pb.PaperPoint, field: str) -> PaperPoint:
    if message.HasField("lexical"):
        raise InvalidField(f"{field}.lexical", "set", "terms in its place: lexical is no longer read")
    return PaperPoint(
        paper=paper_from_message(message.paper, f"{field}.paper"),
        version=message.version,
        profile=_point_vector(message.profile, f"{field}.profile"),
        content=_point_vector(message.content, f"{field}.content"),
        terms=terms_from_message(message.terms),
        length=message.length,
        hidden=message.hidden,
    )


def paper_point_to_message(point: PaperPoint) -> pb.PaperPoint:
    return pb.PaperPoint(
        paper=paper_to_message(point.paper),
        profile=_bytes(point.profile),
        content=_bytes(point.content),
        terms=terms_to_message(point.terms),
        length=point.length,
        version=point.version,
        hidden=point.hidden,
    )


def span_point_from_message(message: pb.SpanPoint, field: str) -> SpanPoint:
    return SpanPoint(
        key=message.key,
        citing_id=message.citing_id,
        cited_id=message.cited_id,
        text=message.text,
        version=message.version,
        vector=_point_vector(message.vector, f"{field}.vector"),
        published=date_from_message(message.published, f"{field}.published"),
        revision=message.revision,
        hidden=message.hidden,
        extractor_hash=message.extractor_hash,
        terms=terms_from_message(message.terms),
        span_offset=message.span_offset,
        span_length=message.span_length,
        span_terms=terms_from_message(message.span_terms),
    )


def span_point_to_message(span: SpanPoint) -> pb.SpanPoint:
    return pb.SpanPoint(
        key=span.key,
        citing_id=span.citing_id,
        cited_id=span.cited_id,
        text=span.text,
        vector=_bytes(span.vector),
        published=date_to_message(span.published),
        revision=span.revision,
        version=span.version,
        hidden=span.hidden,
        extractor_hash=span.extractor_hash,
        terms=terms_to_message(span.terms),
        span_offset=span.span_offset,
        span_length=span.span_length,
        span_terms=terms_to_message(span.span_terms),
    )
