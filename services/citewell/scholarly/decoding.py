"""Bytes that people wrote as text: UTF-8, else Latin-1."""

from __future__ import annotations


def decoded(content: bytes) -> tuple[str, int | None]:
    """The text in UTF-8, with or without a byte order mark; else in Latin-1, and the first byte that is no UTF-8."""
    try:
        return content.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        return content.decode("latin-1"), error.start
