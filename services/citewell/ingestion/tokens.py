"""Watermark tokens: Publish answers them; GetPublicationStatus and Recommend's min_watermark accept them."""

from __future__ import annotations

import base64
import binascii
import json

from citewell.runtime.errors import InvalidField
from citewell.scholarly.positions import LogPosition

_VERSION = "1"


def encode_token(position: LogPosition, event_id: str) -> str:
    """The token of an event. It is opaque to clients, and not signed, because it grants no access."""
    fields = [_VERSION, position.log_id, position.partition, position.offset, event_id]
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_token(token: str, field: str = "token") -> tuple[LogPosition, str]:
    """Position and event id; InvalidField for text that is no token."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        match json.loads(base64.b64decode(padded, altchars=b"-_", validate=True)):
            case ["1", str(log_id), int(partition), int(offset), str(event_id)] if (
                0 <= partition < 1 << 31 and 0 <= offset < 1 << 63
            ):
                return LogPosition(log_id, partition, offset), event_id
    except (UnicodeError, binascii.Error, ValueError, RecursionError):
        pass
    raise InvalidField(field, token, "a token as answered by Publish", reason="INVALID_TOKEN")
