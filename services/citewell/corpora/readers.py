"""Streams of paper and context records from the data set formats citewell knows, one record in memory at a time.

Two formats, told apart by their files:
- JSON lines: `papers.jsonl`, `contexts.jsonl` (either may end in `.gz`) and `splits.json` naming citing papers;
- the public benchmark format (ACL-200, FullTextPeerRead, RefSeer, arXiv): `papers.json` {id: {title, abstract}},
  `contexts.json` {id: {masked_text, citing_id, refid}} and `train|val|test.json` lists of {context_id, positive_ids}.

A record that cannot be used is handed to `on_reject` with its file, line and reason; the rest is read on.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from citewell.scholarly.contexts import OTHER, TARGET, count_targets
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.limits import MAX_REFERENCES, MAX_REVISION

SPLITS = ("train", "validation", "test")
_PUBLIC_SPLIT_FILES = {"train": ("train.json",), "validation": ("val.json", "validation.json"), "test": ("test.json",)}
_GLUED = re.compile(rf"(?<=\w)(?=(?:{TARGET}|{OTHER}))|(?<={TARGET})(?=\w)|(?<={OTHER})(?=\w)")
"""Places where text extraction lost the space beside a marker. A marker must be a word of its own."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_PERHAPS_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""An escaped half of a character, or one in raw bytes, in the text of a JSON value."""
_DELIMITERS = (*" \t\r\n,:]}",)
_CHUNK = 1 << 20
_LARGEST_MEMBER = 1 << 26


@dataclass(frozen=True, slots=True)
class PaperRecord:
    """One paper as its source states it."""

    id: str
    title: str
    abstract: str
    published: PartialDate
    venue: str
    line: int
    revision: int = 1
    """As the file states it; 1 where it states none."""
    authors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """One citation context: exactly one marker, and who cites whom there."""

    id: str
    citing_id: str
    cited_id: str
    text: str
    published: PartialDate
    """Date of the citing paper, where the context states it; the citing paper's own record is the fallback."""
    group: int
    """How many works the target's bracket cites; 0 when unknown."""
    source: str
    line: int


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """One citing paper (`by_citing_paper`) or one context, and the split it belongs to."""

    split: str
    key: str
    by_citing_paper: bool


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that was left out: where it stands and why."""

    file: str
    line: int
    reason: str


OnReject = Callable[[Reject], None]


class Malformed(ValueError):
    """A record that cannot be used; the message is the reason."""


def read_papers(folder: Path, on_reject: OnReject) -> Iterator[PaperRecord]:
    """Every usable paper of the data set in `folder`, in file order."""
    for path, line, key, member in _members(folder, "papers", on_reject):
        try:
            yield _paper(key, member, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


def read_contexts(folder: Path, on_reject: OnReject) -> Iterator[ContextRecord]:
    """Every usable citation context of the data set in `folder`, in file order."""
    for path, line, key, member in _members(folder, "contexts", on_reject):
        try:
            yield _context(key, member, line)
        except Malformed as reason:
            on_reject(Reject(path.name, line, str(reason)))


def read_splits(folder: Path, on_reject: OnReject) -> Iterator[SplitRecord]:
    """Which citing paper, or which context, belongs to train, validation and test."""
    named = folder / "splits.json"
    if named.exists():
        for split, citing_id in _stated_splits(named):
            yield SplitRecord(split, citing_id, by_citing_paper=True)
        return
    for split, names in _PUBLIC_SPLIT_FILES.items():
        path = next((folder / name for name in names if (folder / name).exists()), None)
        if path is None:
            raise FileNotFoundError(f"{folder} holds neither splits.json nor {names[0]}")
        for line, _, member in _json_members(path, on_reject):
            if isinstance(member, dict) and isinstance(member.get("context_id"), str):
                yield SplitRecord(split, member["context_id"], by_citing_paper=False)
            else:
                on_reject(Reject(path.name, line, "a split entry needs a context_id"))


def _stated_splits(path: Path) -> Iterator[tuple[str, str]]:
    try:
        stated = parsed(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path.name} is no JSON: {error}") from None
    for split in SPLITS:
        citing_ids = stated.get(split, []) if isinstance(stated, dict) else None
        if not isinstance(citing_ids, list) or not all(isinstance(each, str) for each in citing_ids):
            raise Malformed(f"{path.name} must hold an object with lists of paper ids: {', '.join(SPLITS)}")
        yield from ((split, citing_id) for citing_id in citing_ids)


def raw_members(folder: Path, what: str) -> Iterator[dict[str, Any]]:
    """The raw entries of a JSON lines file ("papers" or "contexts"), for data that matches it row by row."""
    for path, line, _, member in _members(folder, what, _refuse):
        if not isinstance(member, dict):
            raise Malformed(f"{path.name}, line {line}: expected a JSON object")
        yield member


def _refuse(reject: Reject) -> None:
    raise Malformed(f"{reject.file}, line {reject.line}: {reject.reason}")


def _members(folder: Path, what: str, on_reject: OnReject) -> Iterator[tuple[Path, int, str | None, Any]]:
    """(file, line, key, JSON value) of every entry; the key is None in JSON lines, where the entry holds its id."""
    for name in (f"{what}.jsonl.gz", f"{what}.jsonl"):
        path = folder / name
        if path.exists():
            yield from ((path, line, None, member) for line, member in json_lines(path, on_reject))
            return
    path = folder / f"{what}.json"
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds neither {what}.jsonl[.gz] nor {what}.json")
    for line, key, member in _json_members(path, on_reject):
        if key is None:
            raise ValueError(f"{path.name} must hold one JSON object keyed by id, not a list")
        yield path, line, key, member


def open_plain(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


def json_lines(path: Path, on_reject: OnReject) -> Iterator[tuple[int, Any]]:
    """(line, value) of every line of a JSON lines file, plain or gzipped; needs memory for one line."""
    line = 0
    try:
        with open_plain(path) as stream:
            for line, raw in enumerate(stream, start=1):
                if raw.isspace():
                    continue
                try:
                    yield line, parsed(raw)
                except (ValueError, RecursionError) as reason:  # not JSON, not UTF-8, or nested too deeply
                    on_reject(Reject(path.name, line, f"not JSON: {reason}"))
    except (gzip.BadGzipFile, zlib.error, EOFError) as reason:
        on_reject(Reject(path.name, line + 1, f"not gzip: {reason}; the rest of the file was not read"))


def parsed(raw: bytes) -> Any:
    """The JSON value. A lone surrogate, which is no character and cannot be stored, becomes U+FFFD."""
    value = json.loads(raw)
    return _replaced(value) if _PERHAPS_SURROGATE.search(raw) else value


def _replaced(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [_replaced(each) for each in value]
        case dict():
            return {_replaced(key): _replaced(each) for key, each in value.items()}
    return value


def _json_members(path: Path, on_reject: OnReject) -> Iterator[tuple[int, str | None, Any]]:
    """(line, key or None, value) of each member of the one object or array in the file; needs memory for one member.

    Where the text stops being JSON there is no next member to be sure of: the rest of the file is one reject.
    """
    with open_plain(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace") as stream:
        scanner = _Scanner(stream)
        try:
            yield from scanner.members()
        except Malformed as reason:
            on_reject(Reject(path.name, scanner.line, f"{reason}; the rest of the file was not read"))


class _Scanner:
    """Reads one JSON object or array member by member from a text stream."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._at = 0
        self._ended = False
        self.line = 1

    def members(self) -> Iterator[tuple[int, str | None, Any]]:
        opened = self._peek()
        if opened not in ("{", "["):
            raise Malformed("expected one JSON object or array")
        self._advance(1)
        closing, first = {"{": "}", "[": "]"}[opened], True
        while (mark := self._peek()) != closing:
            if not first:
                self._expect(",")
                mark = self._peek()
            first = False
            line, key = self.line, None
            if opened == "{":
                key = self._value()
                if not isinstance(key, str):
                    raise Malformed(f"expected a key, found {mark!r}")
                self._expect(":")
                self._peek()
            yield line, key, self._value()

    def _fill(self) -> None:
        chunk = self._stream.read(max(_CHUNK, len(self._buffer) - self._at))
        self._ended = not chunk
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0

    def _advance(self, characters: int) -> None:
        self.line += self._buffer.count("\n", self._at, self._at + characters)
        self._at += characters

    def _peek(self) -> str:
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._advance(1)
            if self._ended:
                raise Malformed("the file ends inside the JSON value")
            self._fill()

    def _expect(self, mark: str) -> None:
        if (found := self._peek()) != mark:
            raise Malformed(f"expected {mark!r}, found {found!r}")
        self._advance(1)

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise Malformed("not JSON that can be read: it is nested too deeply") from None
            except ValueError as reason:
                if self._ended or len(self._buffer) - self._at > _LARGEST_MEMBER:
                    raise Malformed(f"not JSON: {getattr(reason, 'msg', reason)}") from None
            else:
                # A number that the buffer cuts off decodes too. Only a delimiter after it proves that it is complete.
                if self._ended or self._buffer[end : end + 1] in _DELIMITERS:
                    raw = self._buffer[self._at : end].encode()
                    self._advance(end - self._at)
                    return _replaced(value) if _PERHAPS_SURROGATE.search(raw) else value
            self._fill()


def _paper(key: str | None, member: Any, line: int) -> PaperRecord:
    fields = _fields(member)
    title = _text(fields, "title")
    if not title.strip():
        raise Malformed("a paper needs a title")
    revision = fields.get("revision", 1)
    if not isinstance(revision, int) or not 1 <= revision <= MAX_REVISION:
        raise Malformed(f"revision must be a whole number from 1 to {MAX_REVISION}, got {revision!r}")
    return PaperRecord(
        id=_identifier(key, fields),
        title=title,
        abstract=_text(fields, "abstract"),
        published=_published(fields),
        venue=_text(fields, "venue"),
        line=line,
        revision=revision,
        authors=_names(fields, "authors"),
    )


def _context(key: str | None, member: Any, line: int) -> ContextRecord:
    fields = _fields(member)
    text = _GLUED.sub(" ", _text(fields, "masked_text" if "masked_text" in fields else "text"))
    if (markers := count_targets(text)) != 1:
        raise Malformed(f"a context needs exactly one {TARGET}, found {markers}")
    group = fields.get("group", 0)
    if not isinstance(group, int) or not 0 <= group <= MAX_REFERENCES:
        raise Malformed(f"group must be a whole number from 0 to {MAX_REFERENCES}, got {group!r}")
    return ContextRecord(
        id=_identifier(key, fields),
        citing_id=_reference(fields, "citing_id"),
        cited_id=_reference(fields, "cited_id" if "cited_id" in fields else "refid"),
        text=text,
        published=_published(fields),
        group=group,
        source=_text(fields, "source"),
        line=line,
    )


def _fields(member: Any) -> dict[str, Any]:
    if not isinstance(member, dict):
        raise Malformed(f"expected a JSON object, found {type(member).__name__}")
    return member


def _identifier(key: str | None, fields: dict[str, Any]) -> str:
    return key if key else _reference(fields, "id")


def _reference(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Malformed(f"{name} must be a non-empty string, got {value!r}")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"{name} must be a string, got {value!r}")
    return value


def _names(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of strings; names in another shape are not read."""
    value = fields.get(name)
    return tuple(each for each in value if isinstance(each, str) and each) if isinstance(value, list) else ()


def _published(fields: dict[str, Any]) -> PartialDate:
    value = fields.get("published", fields.get("date", fields.get("year")))
    if value is None:
        return UNKNOWN_DATE
    try:
        return _date(str(value))
    except ValueError as reason:
        raise Malformed(str(reason)) from None


@lru_cache(maxsize=4096)
def _date(text: str) -> PartialDate:
    return PartialDate.parse(text)
