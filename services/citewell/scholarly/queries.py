"""What a writer asks: a place in a draft where a citation is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from citewell.scholarly.contexts import TARGET, count_targets, normalise
from citewell.scholarly.limits import MAX_ABSTRACT, MAX_ID_BYTES, MAX_PASSAGE, MAX_TITLE


class Strategy(Enum):
    """Where candidates come from."""

    PROFILE = "PROFILE"
    HYBRID = "HYBRID"
    EVIDENCE = "EVIDENCE"
    GLOBAL = "GLOBAL"


class AsOf(Enum):
    """What published_before means for the ranking."""

    FILTER = "FILTER"
    KNOWLEDGE = "KNOWLEDGE"


class InvalidQuery(ValueError):
    """Cannot be answered. Names the field (empty for the whole query), its value and what would be right."""

    def __init__(self, field: str, value: str, expected: str, reason: str) -> None:
        super().__init__(f"{field or 'query'} is {value!r}; expected {expected}")
        self.field, self.value, self.expected, self.reason = field, value, expected, reason


@dataclass(frozen=True, slots=True)
class Query:
    """A citation context with its marker, and the draft it stands in. At least one of the three texts is given."""

    context: str = ""
    title: str = ""
    abstract: str = ""
    paper_id: str = ""
    """The draft's own id, if it has one: never an answer, never evidence."""

    def validate(self) -> None:
        """Raises InvalidQuery for a query that cannot be answered."""
        texts = (("context", self.context, MAX_PASSAGE), ("title", self.title, MAX_TITLE))
        for name, text, limit in (*texts, ("abstract", self.abstract, MAX_ABSTRACT)):
            if len(text) > limit:
                raise InvalidQuery(name, f"{len(text)} characters", f"at most {limit}", "TEXT_TOO_LONG")
        if not any(normalise(text) for text in (self.context, self.title, self.abstract)):
            raise InvalidQuery("", "", "a context, a title or an abstract", "EMPTY_QUERY")
        # Of the text that is read: NFC joins an accent behind the marker to its last letter.
        if (context := normalise(self.context)) and (targets := count_targets(context)) != 1:
            raise InvalidQuery(
                "context",
                f"text with {targets} {TARGET}: {self.context}",
                f"exactly one {TARGET} where the citation is missing",
                "MARKER_COUNT",
            )
        if len(self.paper_id.encode()) > MAX_ID_BYTES:
            raise InvalidQuery("paper_id", self.paper_id, f"at most {MAX_ID_BYTES} bytes", "INVALID_FIELD")
