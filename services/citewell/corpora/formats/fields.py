"""Fields of JSON records whose types a reader must not rely on."""

from __future__ import annotations

import html
import re
from typing import Any

from citewell.corpora.readers import Malformed, parsed
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate

_INLINE = re.compile(
    r"</?(?:i|b|u|em|strong|sub|sup|sc|scp|tt|span|font|inline-formula|tex-math|(?:jats|mml):[\w-]+)"
    r"""(?:\s+[\w:-]+=(?:"[^"]*"|'[^']*'))*\s*/?>""",
    re.IGNORECASE,
)
_LINES = re.compile(r"</?(?:p|br|title|jats:(?:p|title|sec))\s*/?>", re.IGNORECASE)


def without_markup(text: str) -> str:
    """A title or an abstract without the HTML, JATS and MathML that publishers leave in it."""
    return " ".join(html.unescape(_INLINE.sub("", _LINES.sub(" ", text))).split())


def text(record: dict[str, Any], *names: str) -> str:
    """The first of these fields that holds text; empty where none does."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def mapping(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object; empty where it is missing."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def entries(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list, which may be written as JSON inside a string."""
    value = record.get(name)
    if isinstance(value, str):
        try:
            value = parsed(value.encode())
        except (ValueError, RecursionError):
            raise Malformed(f"{name} is no JSON") from None
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def required(record: Any, name: str) -> str:
    """A field without which the record is of no use."""
    if not isinstance(record, dict):
        raise Malformed(f"expected a JSON object, found {type(record).__name__}")
    value = record.get(name)
    if value is None or isinstance(value, (dict, list)) or not str(value).strip():
        raise Malformed(f"{name} is missing")
    return str(value).strip()


def date(*values: object) -> PartialDate:
    """The first of these values that is a date, full or in part; a time behind it is left out."""
    for value in values:
        try:
            found = PartialDate.parse(str(value or "")[:10])
        except ValueError:
            continue
        if found.known:
            return found
    return UNKNOWN_DATE


def revision_of(updated: object) -> int:
    """The day on which a source last changed a record, as a revision; 0 where it does not say."""
    return date(updated).first_day()
