"""Names of papers in other systems: one spelling for each, and the one that becomes the paper's id."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from citewell.scholarly.contexts import normalise


class Name(NamedTuple):
    """What a system calls a paper, e.g. ("doi", "10.1000/182")."""

    scheme: str
    value: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.value}"


PREFERRED = ("doi", "arxiv", "acl", "pmid", "pmc", "openalex", "s2", "file")
"""A paper's id is its first name in this order, so that corpora of different sources agree on it."""

_DOI = re.compile(r"10\.\d{4,9}/\S+")
_ARXIV = re.compile(r"(?:arxiv[:./]|abs/|^)(\d{4}\.\d{4,5}|[a-z-]+(?:\.[a-z]{2})?/\d{7})(?:v\d+)?", re.IGNORECASE)
_ARXIV_DOI = re.compile(r"10\.48550/arxiv\.(.+)", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"\w+")
_LEAST_WORDS = 4
_LONGEST_BYTES = 200


def doi(text: str) -> tuple[Name, ...]:
    """The DOI in a text; arXiv's own DOIs are arXiv ids."""
    found = _DOI.search(text)
    if not found:
        return ()
    value = found[0].rstrip(".,;)]}").lower()
    if not value.isprintable() or len(value.encode()) > _LONGEST_BYTES:
        return ()
    if inner := _ARXIV_DOI.fullmatch(value):
        return arxiv(inner[1])
    return (Name("doi", value),)


def arxiv(text: str) -> tuple[Name, ...]:
    """The arXiv id in a text, without its version."""
    found = _ARXIV.search(text.strip())
    return (Name("arxiv", found[1].lower()),) if found else ()


def numbered(scheme: str, value: object) -> tuple[Name, ...]:
    """A name that is a number, e.g. pmid or s2; nothing where there is none."""
    found = _DIGITS.search(str(value)) if value not in (None, "") else None
    return (Name(scheme, found[0]),) if found else ()


def plain(scheme: str, value: object) -> tuple[Name, ...]:
    """A name as it stands; nothing where there is none."""
    text = str(value).strip() if value else ""
    return (Name(scheme, text),) if text else ()


def openalex(text: str) -> tuple[Name, ...]:
    """The id W… in an OpenAlex address."""
    last = text.rstrip("/").rsplit("/", 1)[-1]
    return (Name("openalex", last.upper()),) if re.fullmatch(r"[Ww]\d+", last) else ()


def preferred(names: Iterable[Name]) -> Name | None:
    """The name that is the paper's id."""
    known = [name for name in names if name.scheme in PREFERRED]
    return min(known, key=lambda name: (PREFERRED.index(name.scheme), name.value), default=None)


def title_key(title: str) -> str:
    """The words of a title, for finding a paper by it; empty where there are too few to be sure."""
    words = _WORDS.findall(normalise(title).casefold())
    return " ".join(words) if len(words) >= _LEAST_WORDS else ""
