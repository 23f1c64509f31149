"""Publications and retractions: what may be published, and when two are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from citewell.scholarly.contexts import MaskedContext, Passage, count_targets, mask, normalise
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.limits import (
    MAX_ABSTRACT,
    MAX_AUTHOR,
    MAX_AUTHORS,
    MAX_CONTEXTS,
    MAX_DESCRIPTION_BYTES,
    MAX_EXTERNAL_ID_BYTES,
    MAX_EXTERNAL_IDS,
    MAX_ID_BYTES,
    MAX_MARKERS,
    MAX_PASSAGE,
    MAX_PASSAGES,
    MAX_REFERENCES,
    MAX_RETRACTION_REASON,
    MAX_SCHEME_BYTES,
    MAX_SECTION,
    MAX_TITLE,
    MAX_VENUE,
)
from citewell.scholarly.papers import ExternalId


class InvalidPublication(ValueError):
    """A publication that can never be applied. Names the field, its value and what would be right."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        shown = str(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        super().__init__(f"{field} is {shown!r}; expected {expected}")
        self.field, self.value, self.expected = field, shown, expected


@dataclass(frozen=True, slots=True)
class Publication:
    """One revision of a paper, as its publisher describes it."""

    paper_id: str
    revision: int
    title: str
    abstract: str = ""
    authors: tuple[str, ...] = ()
    venue: str = ""
    published: PartialDate = UNKNOWN_DATE
    external_ids: tuple[ExternalId, ...] = ()
    reference_ids: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    masked_contexts: tuple[MaskedContext, ...] = ()

    def contexts(self) -> dict[str, tuple[str, ...]]:
        """For every cited paper its distinct masked contexts, both in a canonical order; none for a bare reference."""
        texts: dict[str, set[str]] = {cited: set() for cited in self.reference_ids}
        derived = [context for passage in self.passages for context in mask(passage)]
        for context in (*derived, *self.masked_contexts):
            texts.setdefault(context.cited_id, set()).add(normalise(context.text))
        return {cited: tuple(sorted(texts[cited])) for cited in sorted(texts)}

    def content_hash(self) -> str:
        """Equal for equal content, in whatever order references and contexts were given."""
        return _hash(
            "publication",
            normalise(self.title),
            normalise(self.abstract),
            list(self.authors),
            self.venue,
            str(self.published),
            sorted({(other.scheme, other.value) for other in self.external_ids}),
            sorted(self.contexts().items()),
        )


@dataclass(frozen=True, slots=True)
class Retraction:
    """A publisher withdraws a paper."""

    paper_id: str
    revision: int
    reason: str = ""

    def content_hash(self) -> str:
        return _hash("retraction", self.reason)


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log."""

    event_id: str
    body: Publication | Retraction


def validate(body: Publication | Retraction) -> None:
    """Raises InvalidPublication for what can never be applied. Takes time in proportion to the body's size."""
    _check_id("paper_id", body.paper_id)
    if body.revision < 1:
        raise InvalidPublication("revision", body.revision, "a number of at least 1, assigned by the publisher")
    if isinstance(body, Retraction):
        _check_length("reason", body.reason, MAX_RETRACTION_REASON)
        return
    _check_length("title", body.title, MAX_TITLE)
    if not normalise(body.title):
        raise InvalidPublication("title", body.title, "some text")
    _check_length("abstract", body.abstract, MAX_ABSTRACT)
    _check_count("authors", body.authors, MAX_AUTHORS)
    for number, author in enumerate(body.authors):
        _check_length(f"authors[{number}]", author, MAX_AUTHOR)
    _check_length("venue", body.venue, MAX_VENUE)
    _check_count("external_ids", body.external_ids, MAX_EXTERNAL_IDS)
    for number, external in enumerate(body.external_ids):
        _validate_external_id(f"external_ids[{number}]", external)
    if (size := _description_bytes(body)) > MAX_DESCRIPTION_BYTES:
        raise InvalidPublication(
            "authors",
            f"part of {size} bytes in title, abstract, authors, venue and external_ids",
            f"at most {MAX_DESCRIPTION_BYTES} bytes together",
        )
    _check_count("reference_ids", body.reference_ids, MAX_REFERENCES)
    for number, cited in enumerate(body.reference_ids):
        _check_id(f"reference_ids[{number}]", cited)
    _check_count("masked_contexts", body.masked_contexts, MAX_CONTEXTS)
    for number, context in enumerate(body.masked_contexts):
        _check_id(f"masked_contexts[{number}].cited_id", context.cited_id)
        _check_length(f"masked_contexts[{number}].text", context.text, MAX_PASSAGE)
        if (targets := count_targets(context.text)) != 1:
            raise InvalidPublication(f"masked_contexts[{number}].text", f"{targets} TARGETCIT", "exactly one TARGETCIT")
    _check_count("passages", body.passages, MAX_PASSAGES)
    contexts = len(body.masked_contexts)
    for number, passage in enumerate(body.passages):
        _validate_passage(f"passages[{number}]", passage)
        contexts += sum(len(marker.reference_ids) for marker in passage.markers)
        if contexts > MAX_CONTEXTS:
            raise InvalidPublication(
                f"passages[{number}].markers",
                f"more than {MAX_CONTEXTS} contexts, counted up to this passage",
                f"at most {MAX_CONTEXTS} in masked_contexts and passages, one for each marker and id that it cites",
            )


def _validate_external_id(field: str, external: ExternalId) -> None:
    for name, text, limit in (
        ("scheme", external.scheme, MAX_SCHEME_BYTES),
        ("value", external.value, MAX_EXTERNAL_ID_BYTES),
    ):
        if not text or not text.isprintable() or len(text.encode()) > limit:
            raise InvalidPublication(f"{field}.{name}", text, f"printable text of 1 to {limit} bytes")


def _description_bytes(body: Publication) -> int:
    names = [name for other in body.external_ids for name in (other.scheme, other.value)]
    return sum(len(text.encode()) for text in (body.title, body.abstract, *body.authors, body.venue, *names))


def _validate_passage(field: str, passage: Passage) -> None:
    _check_length(f"{field}.text", passage.text, MAX_PASSAGE)
    _check_length(f"{field}.section", passage.section, MAX_SECTION)
    _check_count(f"{field}.markers", passage.markers, MAX_MARKERS)
    end = 0
    for number, marker in sorted(enumerate(passage.markers), key=lambda item: item[1].offset):
        name = f"{field}.markers[{number}]"
        if marker.offset < end or marker.length < 1 or marker.offset + marker.length > len(passage.text):
            raise InvalidPublication(
                name,
                f"{marker.offset}+{marker.length}",
                f"a place inside the {len(passage.text)} characters, not overlapping",
            )
        if not marker.reference_ids:
            raise InvalidPublication(f"{name}.reference_ids", "", "at least one id")
        for place, cited in enumerate(marker.reference_ids):
            _check_id(f"{name}.reference_ids[{place}]", cited)
        end = marker.offset + marker.length


def _check_id(field: str, value: str) -> None:
    if not value or value != value.strip() or len(value.encode()) > MAX_ID_BYTES or not value.isprintable():
        raise InvalidPublication(field, value, f"a printable id of 1 to {MAX_ID_BYTES} bytes without blanks around it")


def _check_length(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidPublication(field, f"{len(text)} characters", f"at most {limit} characters")


def _check_count(field: str, entries: Sequence[object], limit: int) -> None:
    if len(entries) > limit:
        raise InvalidPublication(field, f"{len(entries)} entries", f"at most {limit} entries")


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
