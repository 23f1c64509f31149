"""Publications and retractions: what may be published, and when two are the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from citewell.scholarly.contexts import MaskedContext, Passage, count_targets, mask, normalise
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.limits import MAX_ABSTRACT, MAX_CONTEXTS, MAX_ID_BYTES, MAX_PASSAGE, MAX_REFERENCES, MAX_TITLE
from citewell.scholarly.papers import ExternalId


class InvalidPublication(ValueError):
    """Can never be applied. Names the field, its value and what would be right."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        shown = str(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        super().__init__(f"{field} is {shown!r}; expected {expected}")
        self.field, self.value, self.expected = field, shown, expected


@dataclass(frozen=True, slots=True)
class Publication:
    """A paper as one revision of its publisher tells it."""

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
    """A publisher takes a paper back."""

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
    """Raises InvalidPublication for what can never be applied."""
    _check_id("paper_id", body.paper_id)
    if body.revision < 1:
        raise InvalidPublication("revision", body.revision, "a number of at least 1, assigned by the publisher")
    if isinstance(body, Retraction):
        return
    if not normalise(body.title):
        raise InvalidPublication("title", body.title, "some text")
    for field, text, limit in (("title", body.title, MAX_TITLE), ("abstract", body.abstract, MAX_ABSTRACT)):
        if len(text) > limit:
            raise InvalidPublication(field, f"{len(text)} characters", f"at most {limit}")
    for number, external in enumerate(body.external_ids):
        if not external.scheme or not external.value or not f"{external.scheme}{external.value}".isprintable():
            raise InvalidPublication(f"external_ids[{number}]", external, "a printable scheme and value")
    if len(body.reference_ids) > MAX_REFERENCES:
        raise InvalidPublication("reference_ids", f"{len(body.reference_ids)} ids", f"at most {MAX_REFERENCES}")
    for number, cited in enumerate(body.reference_ids):
        _check_id(f"reference_ids[{number}]", cited)
    if len(body.masked_contexts) > MAX_CONTEXTS:
        raise InvalidPublication("masked_contexts", f"{len(body.masked_contexts)} contexts", f"at most {MAX_CONTEXTS}")
    for number, context in enumerate(body.masked_contexts):
        _check_id(f"masked_contexts[{number}].cited_id", context.cited_id)
        _check_length(f"masked_contexts[{number}].text", context.text)
        if (targets := count_targets(context.text)) != 1:
            raise InvalidPublication(f"masked_contexts[{number}].text", f"{targets} TARGETCIT", "exactly one TARGETCIT")
    for number, passage in enumerate(body.passages):
        _validate_passage(f"passages[{number}]", passage)


def _validate_passage(field: str, passage: Passage) -> None:
    _check_length(f"{field}.text", passage.text)
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
        for cited in marker.reference_ids:
            _check_id(f"{name}.reference_ids", cited)
        end = marker.offset + marker.length


def _check_id(field: str, value: str) -> None:
    if not value or value != value.strip() or len(value.encode()) > MAX_ID_BYTES or not value.isprintable():
        raise InvalidPublication(field, value, f"a printable id of 1 to {MAX_ID_BYTES} bytes without blanks around it")


def _check_length(field: str, text: str) -> None:
    if len(text) > MAX_PASSAGE:
        raise InvalidPublication(field, f"{len(text)} characters", f"at most {MAX_PASSAGE}")


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
