"""Checks of what a caller sent. Errors name the field and the value."""

from __future__ import annotations

import numpy as np

from citewell.index.points import PaperPoint, SpanPoint, Vector
from citewell.runtime.errors import InvalidField
from citewell.scholarly.lexical import LexicalQuery, Terms


def require_range(field: str, value: int, least: int, most: int, unit_name: str = "") -> None:
    if not least <= value <= most:
        raise InvalidField(field, f"{value} {unit_name}".strip(), f"{least} to {most}", reason="OUT_OF_RANGE")


def require_vector(field: str, vector: Vector, dimension: int) -> None:
    if vector.size != dimension:
        raise InvalidField(field, f"{vector.size} numbers", f"{dimension} numbers", reason="WRONG_DIMENSION")
    if not np.isfinite(vector).all():
        raise InvalidField(field, "NaN or infinity among the numbers", "finite numbers", reason="NOT_FINITE")


def require_direction(field: str, vector: Vector) -> None:
    if not vector.any():
        raise InvalidField(field, "all zero", "a vector with a direction", reason="ZERO_VECTOR")


def require_terms(field: str, terms: Terms) -> None:
    """Raises InvalidField unless ids ascend without repetition and values are finite and positive."""
    if len(terms.ids) != len(terms.values):
        raise InvalidField(f"{field}.values", f"{len(terms.values)} values", f"as many as ids, {len(terms.ids)}")
    if (wrong := np.flatnonzero(np.diff(terms.ids.astype(np.int64)) <= 0)).size:
        at = int(wrong[0]) + 1
        raise InvalidField(f"{field}.ids[{at}]", int(terms.ids[at]), f"more than the id before, {terms.ids[at - 1]}")
    if (wrong := np.flatnonzero(~(np.isfinite(terms.values) & (terms.values > 0)))).size:
        at = int(wrong[0])
        raise InvalidField(f"{field}.values[{at}]", float(terms.values[at]), "a finite number above 0")


def require_lexical(field: str, query: LexicalQuery, most: int) -> None:
    """Raises InvalidField unless every score of the query would be finite and not negative."""
    require_range(f"{field}.terms", len(query.terms.ids), 0, most, "terms")
    require_terms(f"{field}.terms", query.terms)
    for name in ("weight", "k1", "mean_length"):
        value = getattr(query, name)
        if not (np.isfinite(value) and value >= 0):
            raise InvalidField(f"{field}.{name}", value, "a finite number, at least 0")
    if not 0 <= query.b <= 1:
        raise InvalidField(f"{field}.b", query.b, "0 to 1")


def require_paper(field: str, point: PaperPoint, dimension: int) -> None:
    if not point.paper.id:
        raise InvalidField(f"{field}.paper.id", "", "an id")
    if point.version < 1:
        raise InvalidField(f"{field}.version", point.version, "at least 1")
    if not point.hidden:
        require_vector(f"{field}.profile", point.profile, dimension)
        if point.content.size:
            require_vector(f"{field}.content", point.content, dimension)
        require_terms(f"{field}.terms", point.terms)
        if not (np.isfinite(point.length) and point.length >= 0):
            raise InvalidField(f"{field}.length", point.length, "a finite number, at least 0")


def require_span(field: str, span: SpanPoint, dimension: int) -> None:
    for name in ("key", "citing_id", "cited_id"):
        if not getattr(span, name):
            raise InvalidField(f"{field}.{name}", "", "a value")
    if span.version < 1:
        raise InvalidField(f"{field}.version", span.version, "at least 1")
    if not span.hidden:
        require_vector(f"{field}.vector", span.vector, dimension)
        require_terms(f"{field}.terms", span.terms)
        require_terms(f"{field}.span_terms", span.span_terms)
    if span.span_offset < 0 or span.span_length < 0 or span.span_offset + span.span_length > len(span.text):
        place = f"{span.span_length} code points from {span.span_offset} on"
        raise InvalidField(f"{field}.span_length", place, f"a place in the text of {len(span.text)} code points")
