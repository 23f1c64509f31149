"""The words of a view's spans in memory, grouped by distinct span, with the citing and cited papers of each.

Spans are equal if their texts are equal without case and spacing. The statistics of a score (number of spans, document
frequencies, lengths) are counted over the admitted spans only, so that spans that a query may not know never change a
score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.points import SPAN_TERMS, TERMS, Point, unpack
from citewell.index.postings import Postings
from citewell.index.queries import SpanSearch
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import Terms

K1, B, DELTA = 1.5, 0.75, 1.0
"""The usual constants of BM25-Okapi and BM25+."""
_COLUMNS = ("group", "cited", "citing", "last_day")

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """The spans and distinct spans that a query may use."""

    spans: NDArray[np.bool_]
    groups: NDArray[np.bool_]
    mean_length: float


Citations = dict[str, list[tuple[str, UUID]]]
"""Cited paper → citing papers and the ids of their spans, newest first."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The best distinct spans of each ranking, with the citing and cited papers of each."""

    okapi: list[int]
    plus: list[int]
    cosine: list[tuple[int, str]]
    """The distinct span of each of the nearest spans, and the cited paper."""
    citations: dict[int, Citations]
    mean_length: float


class Names:
    """Numbers for names."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self.names: list[str] = []

    def number(self, name: str) -> int:
        number = self._number.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def known(self, names: Iterable[str]) -> list[int]:
        return [self._number[name] for name in names if name in self._number]


class SpanCopy:
    """The spans of one view. Searches may run in parallel; `put` needs exclusive access."""

    def __init__(self) -> None:
        self.postings = Postings()
        self._cited = Names()
        self._citing = Names()
        self._row: dict[bytes, int] = {}
        self._ids: list[bytes] = []
        self._free: list[int] = []
        self._live = np.zeros(0, bool)
        self._columns = {name: np.zeros(0, np.int32) for name in _COLUMNS}
        self._group: dict[bytes, int] = {}
        self._digests: list[bytes] = []
        self._members: list[int] = []
        self._free_groups: list[int] = []
        self._lengths = np.zeros(0, np.float32)

    @property
    def spans(self) -> int:
        return len(self._row)

    @property
    def groups(self) -> int:
        """How many distinct spans there are."""
        return len(self._group)

    def put(self, points: Sequence[Point]) -> None:
        """Stores new versions and removes hidden spans."""
        for point in points:
            self._forget(point.id.bytes)
        shown = [point for point in points if not point.payload["hidden"]]
        bags: dict[int, tuple[Terms, float]] = {}
        for point in shown:
            text = span_text(point)
            digest = blake2b(" ".join(text.lower().split()).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            group = self._group.get(digest)
            if group is None:
                group = self._new_group(digest)
                whole = not point.payload["span"][1]
                terms = unpack(point.payload[TERMS if whole else SPAN_TERMS])
                bags[group] = terms, float(terms.values.sum(dtype=np.float64))
            self._members[group] += 1
            self._add(point, group)
        if bags:
            groups = np.array(list(bags), np.int64)
            self._lengths = _grown(self._lengths, len(self._digests))
            self._lengths[groups] = [length for _, length in bags.values()]
            self.postings.put(groups, list(bags.values()))

    def _add(self, point: Point, group: int) -> None:
        id_ = point.id.bytes
        row = self._free.pop() if self._free else len(self._ids)
        if row == len(self._ids):
            self._ids.append(id_)
            if row >= len(self._live):
                self._live = _grown(self._live, row + 1)
                self._columns = {name: _grown(column, row + 1) for name, column in self._columns.items()}
        self._row[id_], self._ids[row], self._live[row] = row, id_, True
        payload = point.payload
        cited, citing = self._cited.number(payload["cited_id"]), self._citing.number(payload["citing_id"])
        for name, value in zip(_COLUMNS, (group, cited, citing, payload["last_day"]), strict=True):
            self._columns[name][row] = value

    def _forget(self, id_: bytes) -> None:
        row = self._row.pop(id_, None)
        if row is None:
            return
        self._live[row] = False
        self._free.append(row)
        group = int(self._columns["group"][row])
        self._members[group] -= 1
        if not self._members[group]:
            del self._group[self._digests[group]]
            self._free_groups.append(group)
            self.postings.remove(np.array([group]))

    def _new_group(self, digest: bytes) -> int:
        group = self._free_groups.pop() if self._free_groups else len(self._digests)
        if group == len(self._digests):
            self._digests.append(digest)
            self._members.append(0)
        self._group[digest], self._digests[group] = group, digest
        return group

    def search(self, search: SpanSearch, width: int, nearest: Sequence[UUID]) -> Candidates:
        """The best `width` distinct spans by each ranking of words, and those of the spans nearest to the vector."""
        admitted = self._admitted(search.published_before, search.excluded_citing_ids, search.filter.excluded_ids)
        okapi, plus = (self._best(scores, width) for scores in self._rankings(search.terms, admitted))
        cosine = self._nearest(nearest, admitted)
        citations = self._citations({*okapi, *plus, *(group for group, _ in cosine)}, admitted)
        return Candidates(okapi, plus, cosine, citations, admitted.mean_length)

    def _admitted(
        self, published_before: PartialDate, excluded_citing: Iterable[str], excluded_cited: Iterable[str]
    ) -> Admitted:
        """The spans that a query may use, by citing paper, date and cited paper."""
        count = len(self._ids)
        spans = self._live[:count].copy()
        if published_before.known:
            days = self._columns["last_day"][:count]
            spans &= (days >= 1) & (days < published_before.first_day())
        citing, cited = self._citing.known(excluded_citing), self._cited.known(excluded_cited)
        for name, excluded in (("citing", citing), ("cited", cited)):
            if excluded:
                spans &= ~np.isin(self._columns[name][:count], excluded)
        groups = np.bincount(self._columns["group"][:count][spans], minlength=len(self._digests)) > 0
        lengths = self._lengths[: len(groups)][groups]
        return Admitted(spans, groups, float(lengths.mean(dtype=np.float64)) if len(lengths) else 0.0)

    def _rankings(self, query: Terms, admitted: Admitted) -> tuple[Scores, Scores]:
        """BM25-Okapi and BM25+ of the admitted distinct spans. BM25+ adds δ only for terms that match."""
        count = len(admitted.groups)
        groups, terms, counts = self.postings.occurrences(query.ids)
        known = admitted.groups[groups]
        groups, terms, counts = groups[known], terms[known], counts[known].astype(np.float64)
        frequency = np.bincount(terms, minlength=len(query))
        total = np.count_nonzero(admitted.groups)
        rarity = np.log(1 + (total - frequency + 0.5) / (frequency + 0.5))
        length = self._lengths[groups].astype(np.float64) / (admitted.mean_length or 1.0)
        repeated = counts * (K1 + 1) / (counts + K1 * (1 - B + B * length))
        wanted = query.values.astype(np.float64)[terms]
        okapi = np.bincount(groups, wanted * rarity[terms] * repeated, count)
        plus_rarity = np.log((total + 1) / np.maximum(frequency, 1))
        plus = np.bincount(groups, wanted * plus_rarity[terms] * (DELTA + repeated), count)
        return okapi.astype(np.float64), plus.astype(np.float64)

    def _best(self, scores: Scores, limit: int) -> list[int]:
        """The groups with the largest scores above 0; ties by the digest of the text."""
        groups = np.flatnonzero(scores > 0)
        if len(groups) > limit:
            least = np.partition(scores[groups], len(groups) - limit)[len(groups) - limit]
            groups = groups[scores[groups] >= least]
        return sorted(groups.tolist(), key=lambda group: (-scores[group], self._digests[group]))[:limit]

    def _nearest(self, ids: Sequence[UUID], admitted: Admitted) -> list[tuple[int, str]]:
        """The distinct span and the cited paper of each of these spans that is admitted."""
        rows = [row for id_ in ids if (row := self._row.get(id_.bytes)) is not None and admitted.spans[row]]
        group, cited = (self._columns[name][rows].tolist() for name in ("group", "cited"))
        return [(each, self._cited.names[paper]) for each, paper in zip(group, cited, strict=True)]

    def _citations(self, groups: Iterable[int], admitted: Admitted) -> dict[int, Citations]:
        """The citing and cited papers of each of these groups."""
        wanted = np.zeros(len(admitted.groups), bool)
        wanted[list(groups)] = True
        group, cited, citing, day = (self._columns[name][: len(self._ids)] for name in _COLUMNS)
        rows = np.flatnonzero(admitted.spans & wanted[group])
        found: dict[int, Citations] = {}
        for row in sorted(rows.tolist(), key=lambda row: (-day[row], self._ids[row])):
            papers = found.setdefault(int(group[row]), {})
            said = self._citing.names[citing[row]], UUID(bytes=self._ids[row])
            papers.setdefault(self._cited.names[cited[row]], []).append(said)
        return found


def span_text(point: Point) -> str:
    """The text of the span inside its context; the whole context if the span has no range."""
    offset, length = point.payload["span"]
    text: str = point.payload["text"]
    return text[offset : offset + length] if length else text


def _grown(array: NDArray[Any], least: int) -> NDArray[Any]:
    if least <= len(array):
        return array
    grown = np.zeros(max(1024, 2 * least), array.dtype)
    grown[: len(array)] = array
    return grown
