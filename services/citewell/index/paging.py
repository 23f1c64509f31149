"""Opaque page tokens: where the next page starts, bound to the view and the filter of the request."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import asdict
from uuid import UUID

from citewell.index.views import View
from citewell.runtime.errors import InvalidField
from citewell.scholarly.papers import SearchFilter


def to_token(start: UUID, view: View, search_filter: SearchFilter) -> str:
    """A token that is valid only for the same filter and view."""
    written = json.dumps([start.hex, _digest(view, search_filter)])
    return base64.urlsafe_b64encode(written.encode()).decode()


def from_token(token: str, view: View, search_filter: SearchFilter) -> UUID:
    """Where the page starts; InvalidField for a token that is damaged or belongs to another filter or view."""
    try:
        start, digest = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
        position = UUID(start)
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
        raise InvalidField("page_token", token, "a next_page_token as it was returned") from None
    if digest != _digest(view, search_filter):
        raise InvalidField("page_token", token, "the token of a request with the same filter and view")
    return position


def _digest(view: View, search_filter: SearchFilter) -> str:
    written = asdict(search_filter)
    question = [view.name, view.epoch, *(sorted(v) if isinstance(v, frozenset) else v for v in written.values())]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()[:16]
