"""Converts shared messages to domain objects and back. Errors name the field as in the caller's request."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from citewell.runtime.errors import InvalidField
from citewell.scholarly import publications
from citewell.scholarly.contexts import CitationMarker, MaskedContext, Passage
from citewell.scholarly.dates import FIRST_YEAR, LAST_YEAR, PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.limits import (
    MAX_EVENT_BYTES,
    MAX_EXCLUDED,
    MAX_HASH_BYTES,
    MAX_ID_BYTES,
    MAX_VECTOR_BYTES,
    MAX_VECTORS,
    MAX_VENUES,
)
from citewell.scholarly.papers import ExternalId, Paper, SearchFilter
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.queries import InvalidQuery, Query
from citewell.scholarly.second_phase import PARTS, SecondPhaseQuery
from citewell.types.v1 import paper_pb2, publication_pb2, terms_pb2


class QueryFields(Protocol):
    """A message that holds a query's texts: the recommender's Query, or a request of profiler or reranker."""

    context: str
    title: str
    abstract: str


def date_from_message(message: paper_pb2.PartialDate, field: str) -> PartialDate:
    """The date, or InvalidField."""
    try:
        return PartialDate(message.year, message.month, message.day)
    except ValueError as error:
        written = f"{message.year}-{message.month}-{message.day}"
        raise InvalidField(field, written, f"a date ({error})", reason="INVALID_DATE") from None


def date_to_message(date: PartialDate) -> paper_pb2.PartialDate:
    return paper_pb2.PartialDate(year=date.year, month=date.month, day=date.day)


def paper_from_message(message: paper_pb2.Paper, field: str = "paper") -> Paper:
    """The paper, or InvalidField."""
    return Paper(
        id=message.id,
        title=message.title,
        abstract=message.abstract,
        authors=tuple(message.authors),
        venue=message.venue,
        published=date_from_message(message.published, f"{field}.published"),
        external_ids=tuple(ExternalId(other.scheme, other.value) for other in message.external_ids),
        in_degree=message.in_degree,
        revision=message.revision,
    )


def paper_to_message(paper: Paper, *, full: bool = True) -> paper_pb2.Paper:
    """The paper as a message, in the BASIC or FULL view."""
    message = paper_pb2.Paper(
        id=paper.id,
        title=paper.title,
        authors=paper.authors,
        venue=paper.venue,
        published=date_to_message(paper.published),
        in_degree=paper.in_degree,
        revision=paper.revision,
    )
    if full:
        message.abstract = paper.abstract
        message.external_ids.extend(_external_ids_to_message(paper.external_ids))
    return message


def filter_from_message(
    message: paper_pb2.SearchFilter, field: str = "filter", *, most_excluded: int = MAX_EXCLUDED + 1
) -> SearchFilter:
    """The filter, or InvalidField when it is too long or its bounds contradict each other."""
    for name in ("year_from", "year_to"):
        if getattr(message, name) < 0:
            raise InvalidField(f"{field}.{name}", getattr(message, name), "a year, or 0 for no bound")
    if message.year_from and message.year_to and message.year_from > message.year_to:
        raise InvalidField(
            f"{field}.year_from",
            message.year_from,
            f"a year not after year_to, {message.year_to}",
            reason="INVERTED_DATES",
        )
    for name, limit in (("excluded_ids", most_excluded), ("venues", MAX_VENUES)):
        if len(getattr(message, name)) > limit:
            raise InvalidField(f"{field}.{name}", f"{len(getattr(message, name))} entries", f"at most {limit}")
    before = date_from_message(message.published_before, f"{field}.published_before")
    # A bound is any number; it need not be a year in which papers appeared.
    opening = PartialDate(min(max(message.year_from, FIRST_YEAR), LAST_YEAR)).first_day()
    if before.known and message.year_from and before.first_day() <= opening:
        raise InvalidField(
            f"{field}.published_before", before, f"a date after year_from, {message.year_from}", reason="INVERTED_DATES"
        )
    return SearchFilter(
        published_before=before,
        year_from=message.year_from,
        year_to=message.year_to,
        venues=frozenset(message.venues),
        excluded_ids=frozenset(message.excluded_ids),
    )


def filter_to_message(search_filter: SearchFilter) -> paper_pb2.SearchFilter:
    return paper_pb2.SearchFilter(
        published_before=date_to_message(search_filter.published_before),
        year_from=search_filter.year_from,
        year_to=search_filter.year_to,
        venues=sorted(search_filter.venues),
        excluded_ids=sorted(search_filter.excluded_ids),
    )


def query_from_message(message: QueryFields, field: str = "") -> Query:
    """The valid query, or InvalidField. `field` is its path in the request; empty if the request has its fields."""
    query = Query(message.context, message.title, message.abstract, getattr(message, "paper_id", ""))
    try:
        query.validate()
    except InvalidQuery as error:
        path = ".".join(filter(None, (field, error.field))) or "context"
        raise InvalidField(path, error.value, error.expected, reason=error.reason) from None
    return query


def publication_from_message(
    message: publication_pb2.Publication, field: str = "publication"
) -> publications.Publication:
    """The publication, not yet validated, or InvalidField for an impossible date."""
    return publications.Publication(
        paper_id=message.paper_id,
        revision=message.revision,
        title=message.title,
        abstract=message.abstract,
        authors=tuple(message.authors),
        venue=message.venue,
        published=date_from_message(message.published, f"{field}.published"),
        external_ids=tuple(ExternalId(other.scheme, other.value) for other in message.external_ids),
        reference_ids=tuple(message.reference_ids),
        passages=tuple(
            Passage(
                passage.text,
                tuple(
                    CitationMarker(marker.offset, marker.length, tuple(marker.reference_ids), marker.group)
                    for marker in passage.markers
                ),
                passage.section,
            )
            for passage in message.passages
        ),
        masked_contexts=tuple(
            MaskedContext(context.text, context.cited_id, context.group_size) for context in message.masked_contexts
        ),
    )


def publication_to_message(publication: publications.Publication) -> publication_pb2.Publication:
    return publication_pb2.Publication(
        paper_id=publication.paper_id,
        revision=publication.revision,
        title=publication.title,
        abstract=publication.abstract,
        authors=publication.authors,
        venue=publication.venue,
        published=date_to_message(publication.published),
        external_ids=_external_ids_to_message(publication.external_ids),
        reference_ids=publication.reference_ids,
        passages=[
            publication_pb2.Passage(
                text=passage.text,
                section=passage.section,
                markers=[
                    publication_pb2.CitationMarker(
                        offset=marker.offset,
                        length=marker.length,
                        reference_ids=marker.reference_ids,
                        group=marker.group,
                    )
                    for marker in passage.markers
                ],
            )
            for passage in publication.passages
        ],
        masked_contexts=[
            publication_pb2.MaskedContext(text=context.text, cited_id=context.cited_id, group_size=context.group_size)
            for context in publication.masked_contexts
        ],
    )


def check_event(message: publication_pb2.PublicationEvent) -> None:
    """Raises InvalidField for an event that is too large to be stored or sent."""
    kind = message.WhichOneof("body") or "body"
    if (size := message.ByteSize()) > MAX_EVENT_BYTES:
        raise InvalidField(kind, f"{size} bytes", f"at most {MAX_EVENT_BYTES} bytes", reason="EVENT_TOO_LARGE")
    if len(message.event_id.encode()) > MAX_ID_BYTES or not message.event_id.isprintable():
        raise InvalidField("event_id", message.event_id, f"printable text of at most {MAX_ID_BYTES} bytes")
    vectors = message.publication.vectors
    if len(vectors) > MAX_VECTORS:
        raise InvalidField(f"{kind}.vectors", f"{len(vectors)} entries", f"at most {MAX_VECTORS} entries")
    for number, vector in enumerate(vectors):
        for name, length, limit in (
            ("values", len(vector.values), MAX_VECTOR_BYTES),
            ("text_hash", len(vector.text_hash), MAX_HASH_BYTES),
            ("model_hash", len(vector.model_hash.encode()), MAX_HASH_BYTES),
        ):
            if length > limit:
                raise InvalidField(f"{kind}.vectors[{number}].{name}", f"{length} bytes", f"at most {limit} bytes")


def event_from_message(message: publication_pb2.PublicationEvent) -> publications.Event:
    """The event, within the limits of check_event but not yet validated, or InvalidField."""
    check_event(message)
    match message.WhichOneof("body"):
        case "publication":
            return publications.Event(message.event_id, publication_from_message(message.publication))
        case "retraction":
            told = message.retraction
            return publications.Event(
                message.event_id, publications.Retraction(told.paper_id, told.revision, told.reason)
            )
        case _:
            raise InvalidField("body", "", "a publication or a retraction")


def event_to_message(event: publications.Event) -> publication_pb2.PublicationEvent:
    if isinstance(event.body, publications.Retraction):
        body = event.body
        retraction = publication_pb2.Retraction(paper_id=body.paper_id, revision=body.revision, reason=body.reason)
        return publication_pb2.PublicationEvent(event_id=event.event_id, retraction=retraction)
    return publication_pb2.PublicationEvent(event_id=event.event_id, publication=publication_to_message(event.body))


def position_from_message(message: publication_pb2.LogPosition) -> LogPosition:
    return LogPosition(message.log_id, message.partition, message.offset)


def position_to_message(position: LogPosition) -> publication_pb2.LogPosition:
    return publication_pb2.LogPosition(log_id=position.log_id, partition=position.partition, offset=position.offset)


def terms_from_message(message: terms_pb2.Terms, field: str = "terms") -> Terms:
    """The terms, or InvalidField."""
    if len(message.ids) != len(message.values):
        told = f"{len(message.values)} values"
        raise InvalidField(f"{field}.values", told, f"as many as ids, {len(message.ids)}")
    ids, values = np.array(message.ids, np.uint32), np.array(message.values, np.float32)
    if (disorder := np.flatnonzero(ids[1:] <= ids[:-1])).size:
        at = int(disorder[0]) + 1
        raise InvalidField(f"{field}.ids[{at}]", ids[at], f"more than the id before it, {ids[at - 1]}")
    if (bad := np.flatnonzero(~(np.isfinite(values) & (values >= 0)))).size:
        at = int(bad[0])
        raise InvalidField(f"{field}.values[{at}]", values[at], "a number of at least 0")
    return Terms(ids, values)


def terms_to_message(terms: Terms) -> terms_pb2.Terms:
    return terms_pb2.Terms(ids=terms.ids.tolist(), values=terms.values.tolist())


def lexical_query_from_message(message: terms_pb2.LexicalQuery, field: str = "lexical") -> LexicalQuery:
    """The lexical part of a search, or InvalidField."""
    for name, most in (("weight", math.inf), ("k1", math.inf), ("b", 1.0), ("mean_length", math.inf)):
        value = getattr(message, name)
        if not (math.isfinite(value) and 0 <= value <= most):
            expected = "a number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
            raise InvalidField(f"{field}.{name}", value, expected)
    terms = terms_from_message(message.terms, f"{field}.terms")
    return LexicalQuery(terms, message.weight, message.k1, message.b, message.mean_length)


def lexical_query_to_message(query: LexicalQuery) -> terms_pb2.LexicalQuery:
    return terms_pb2.LexicalQuery(
        terms=terms_to_message(query.terms),
        weight=query.weight,
        k1=query.k1,
        b=query.b,
        mean_length=query.mean_length,
    )


def second_phase_query_from_message(
    message: terms_pb2.SecondPhaseQuery, terms: int, field: str = "second_phase"
) -> SecondPhaseQuery:
    """The query of the second phase of a search by `terms` terms, or InvalidField."""
    names = ("context_vector", "paper_vector", "window_vector")
    context, paper, window = (np.array(getattr(message, name), np.float32) for name in names)
    for name, vector in zip(names, (context, paper, window), strict=True):
        if not np.isfinite(vector).all():
            raise InvalidField(f"{field}.{name}", "not finite", "finite numbers")
    weights = np.zeros((len(PARTS), terms), np.float32)
    for row, name in zip(weights, PARTS, strict=True):
        told = np.array(getattr(message, name), np.float32)
        if len(told) != terms:
            raise InvalidField(f"{field}.{name}", f"{len(told)} weights", f"as many as lexical.terms, {terms}")
        if not (np.isfinite(told) & (told >= 0)).all():
            raise InvalidField(f"{field}.{name}", "a negative number, or none", "numbers of at least 0")
        row[:] = told
    return SecondPhaseQuery(context, paper, weights, window)


def second_phase_query_to_message(query: SecondPhaseQuery) -> terms_pb2.SecondPhaseQuery:
    parts = {name: row.tolist() for name, row in zip(PARTS, query.weights, strict=True)}
    return terms_pb2.SecondPhaseQuery(
        context_vector=query.context.tolist(),
        paper_vector=query.paper.tolist(),
        window_vector=query.window.tolist(),
        **parts,
    )


def _external_ids_to_message(external_ids: Iterable[ExternalId]) -> list[paper_pb2.ExternalId]:
    return [paper_pb2.ExternalId(scheme=other.scheme, value=other.value) for other in external_ids]
