"""An inverted index of bags of words in memory: for each term, the papers that contain it and its counts.

Postings are kept in immutable segments, in memory or mapped from files. A new version of a bag goes to a new segment;
its old entries are skipped until the segment is merged with others. Merging is geometric, so an entry is copied a few
times in all. Segments have a maximum size, which limits the time and memory of a merge.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.scholarly.lexical import LexicalQuery, Terms, half_counts

Rows = NDArray[np.int64]
Counts = NDArray[np.float32]

FAN = 4
"""This many segments of similar size are merged into one."""
LARGEST, LARGEST_ON_DISK = 2_000_000, 8_000_000
"""Segments with more entries than this are not merged any further. A search visits every segment: files are larger."""
TO_DISK = 500_000
"""Merged segments with more entries than this go to files, if there is a folder for them."""
_BATCH = 4_000_000
"""Entries that are scored at once: limits the memory of a search."""
_DEAD = -1


@dataclass(slots=True, eq=False)
class Segment:
    """Entries by term, then by document. A document is one version of a bag; its row is that of its paper."""

    terms: NDArray[np.uint32]
    starts: Rows
    documents: NDArray[np.int32]
    counts: Counts
    rows: Rows
    lengths: Counts
    dead: int = 0

    @property
    def entries(self) -> int:
        return len(self.documents)

    @property
    def bytes(self) -> int:
        parts = (self.terms, self.starts, self.documents, self.counts, self.rows, self.lengths)
        return sum(part.nbytes for part in parts)


class Postings:
    """Bags of words, one per row. Searches may run in parallel; changes need exclusive access."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._segments: list[Segment | None] = []  # an entry is kept while rows refer to it
        self._segment = np.empty(0, np.int32)
        self._document = np.empty(0, np.int32)

    @property
    def entries(self) -> int:
        """The number of entries, including those of replaced bags."""
        return sum(segment.entries for segment in self._live())

    @property
    def bytes(self) -> int:
        """Memory and files of all segments."""
        return sum(segment.bytes for segment in self._live())

    @property
    def segments(self) -> int:
        return sum(1 for _ in self._live())

    def _live(self) -> Iterator[Segment]:
        return (segment for segment in self._segments if segment is not None)

    def put(self, rows: Rows, bags: Sequence[tuple[Terms, float]]) -> None:
        """Replaces the bags of these distinct rows."""
        self.remove(rows)
        filled = [number for number, (terms, _) in enumerate(bags) if len(terms)]
        if filled:
            self._add(_segment(rows[filled], [bags[number] for number in filled]))

    def remove(self, rows: Rows) -> None:
        """Removes the bags of these rows; rows without a bag are ignored."""
        rows = rows[rows < len(self._segment)]
        rows = rows[self._segment[rows] != _DEAD]
        for place in np.unique(self._segment[rows]).tolist():
            chosen = rows[self._segment[rows] == place]
            segment = self._at(place)
            segment.rows[self._document[chosen]] = _DEAD
            segment.dead += len(chosen)
            if segment.dead == len(segment.rows):
                self._segments[place] = None
        self._segment[rows] = _DEAD

    def _at(self, place: int) -> Segment:
        segment = self._segments[place]
        assert segment is not None
        return segment

    def _add(self, segment: Segment) -> None:
        place = self._segments.index(None) if None in self._segments else len(self._segments)
        self._segments[place : place + 1] = [segment]
        alive = np.flatnonzero(segment.rows != _DEAD)
        rows = segment.rows[alive]
        if (most := int(rows.max()) + 1) > len(self._segment):
            self._segment = _grown(self._segment, most)
            self._document = _grown(self._document, most)
        self._segment[rows] = place
        self._document[rows] = alive

    def due(self) -> list[Segment]:
        """Segments to be merged now, or none. Pass them to `merged`, then to `replace`, with no change in between."""
        for segment in self._live():
            if 2 * segment.dead > len(segment.rows):
                return [segment]
        sizes: dict[int, list[Segment]] = {}
        for segment in self._live():
            if segment.entries < (LARGEST_ON_DISK if self._folder else LARGEST):
                sizes.setdefault(int(np.log(segment.entries) / np.log(FAN)), []).append(segment)
        for _, alike in sorted(sizes.items()):
            if len(alike) >= FAN:
                return alike
        return []

    def merged(self, old: Sequence[Segment]) -> Segment | None:
        """One segment with the live bags of these segments; None if there are none. Nothing is changed."""
        segment = merge(old)
        if segment is not None and self._folder is not None and segment.entries > TO_DISK:
            segment.documents = _mapped(segment.documents, self._folder)
            segment.counts = _mapped(segment.counts, self._folder)
        return segment

    def replace(self, old: Sequence[Segment], merged: Segment | None) -> None:
        """Replaces segments by the one that they were merged into."""
        gone = {id(segment) for segment in old}
        self._segments = [None if id(segment) in gone else segment for segment in self._segments]
        if merged is not None:
            self._add(merged)

    def tidy(self) -> None:
        """Merges all segments that are due."""
        while due := self.due():
            self.replace(due, self.merged(due))

    def scores(self, query: LexicalQuery, rows: int) -> NDArray[np.float64]:
        """The lexical score of each row below `rows`.

        A row's parts are added in the order of the terms, wherever they are stored, so equal bags have equal scores.
        """
        scores = np.zeros(rows + 1)  # the last element collects the scores of replaced bags
        found: list[tuple[Rows, Counts]] = []
        entries = 0
        for segment in self._live():
            if not (lists := _lists(segment, query.terms.ids)):
                continue
            documents, parts, _ = _parts(segment, query, lists)
            found.append((segment.rows.take(documents), parts))
            entries += len(parts)
            if entries > _BATCH:
                _add_up(scores, found)
                found, entries = [], 0
        _add_up(scores, found)
        return scores[:rows]

    def occurrences(self, terms: NDArray[np.uint32]) -> tuple[Rows, NDArray[np.int64], Counts]:
        """The entries of these terms: row, number of the term, and count. The terms of a row are in order."""
        found = []
        for segment in self._live():
            for number, place in _lists(segment, terms):
                rows = segment.rows[segment.documents[place]]
                alive = rows != _DEAD
                found.append((rows[alive], np.full(np.count_nonzero(alive), number), segment.counts[place][alive]))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
        rows, numbers, counts = (np.concatenate(each) for each in zip(*found, strict=True))
        return rows, numbers, counts

    def counts_of(self, terms: NDArray[np.uint32], rows: Rows) -> tuple[Rows, NDArray[np.int64], NDArray[np.float64]]:
        """The entries of these distinct rows for these terms, by position in `rows`, then by number of the term."""
        inside = np.flatnonzero(rows < len(self._segment))
        places, documents = self._segment[rows[inside]], self._document[rows[inside]]
        found = []
        for place in np.unique(places[places != _DEAD]).tolist():
            segment, chosen = self._at(place), places == place
            owner = np.full(len(segment.rows), _DEAD)
            owner[documents[chosen]] = inside[chosen]
            wanted = owner != _DEAD  # one byte a document: it stays in the processor's cache while lists are read
            if not (lists := _lists(segment, terms)):
                continue
            entries = np.concatenate([segment.documents[part] for _, part in lists])
            at = np.flatnonzero(wanted.take(entries))  # `take` costs a third of an index in brackets
            ends = np.cumsum([part.stop - part.start for _, part in lists])
            of = np.searchsorted(ends, at, side="right")
            # From the place among the joined lists to the place in the segment.
            moved = np.array([part.stop for _, part in lists]) - ends
            numbers = np.array([number for number, _ in lists])
            found.append((owner[entries[at]], numbers[of], segment.counts[at + moved[of]]))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        owners, terms_of, counts = (np.concatenate(each) for each in zip(*found, strict=True))
        # The entries of one row are in one segment, hence in the order of the terms already.
        order = np.argsort(owners.astype(np.uint16) if len(rows) < 1 << 16 else owners, kind="stable")
        return owners[order], terms_of[order], counts[order].astype(np.float64)

    def matched(self, query: LexicalQuery, rows: Rows, limit: int) -> list[Terms]:
        """For each of these rows, the terms with the largest shares of its lexical score, and these shares."""
        numbers = np.full(len(self._segment) + 1, _DEAD)
        inside = rows < len(self._segment)
        numbers[rows[inside]] = np.flatnonzero(inside)
        numbers[-1] = _DEAD  # the row of dead documents
        found: list[tuple[Rows, NDArray[np.uint32], Counts]] = []
        for segment in self._live():
            if lists := _lists(segment, query.terms.ids):
                documents, parts, terms = _parts(segment, query, lists)
                owner = numbers[segment.rows[documents]]
                chosen = owner != _DEAD
                found.append((owner[chosen], terms[chosen], parts[chosen]))
        if not found:
            return [Terms.of({}) for _ in rows]
        owners, terms, parts = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.lexsort((terms, owners))
        bounds = np.searchsorted(owners[order], np.arange(len(rows) + 1))
        return [
            Terms(terms[order[start:end]], parts[order[start:end]]).largest(limit)
            for start, end in itertools.pairwise(bounds.tolist())
        ]


def merge(segments: Sequence[Segment]) -> Segment | None:
    """One segment with the live bags of all segments; None if there are none. The segments are not changed."""
    parts = [part for part in map(_without_dead, segments) if part.entries]
    if len(parts) <= 1:
        return parts[0] if parts else None
    terms, _ = _distinct(np.sort(np.concatenate([part.terms for part in parts]), kind="stable"))
    places = [np.searchsorted(terms, part.terms) for part in parts]
    sizes = np.zeros(len(terms), np.int64)
    for part, place in zip(parts, places, strict=True):
        sizes[place] += np.diff(part.starts)
    starts = _starts(sizes)
    documents = np.empty(starts[-1], np.int32)
    counts = np.empty(starts[-1], np.float32)
    free, before = starts[:-1].copy(), 0
    for part, place in zip(parts, places, strict=True):
        size = np.diff(part.starts)
        target = np.repeat(free[place] - part.starts[:-1], size) + np.arange(part.entries)
        documents[target] = part.documents + before
        counts[target] = part.counts
        free[place] += size
        before += len(part.rows)
    rows, lengths = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "lengths"))
    return Segment(terms, starts, documents, counts, rows, lengths)


def _without_dead(segment: Segment) -> Segment:
    """The segment without the bags that were replaced."""
    if not segment.dead:
        return segment
    alive = segment.rows != _DEAD
    number = np.cumsum(alive, dtype=np.int32) - np.int32(1)
    kept = alive[segment.documents]
    sizes = np.diff(np.concatenate([[0], np.cumsum(kept)])[segment.starts])
    terms = sizes > 0
    return Segment(
        segment.terms[terms],
        _starts(sizes[terms]),
        number[segment.documents[kept]],
        segment.counts[kept],
        segment.rows[alive],
        segment.lengths[alive],
    )


def _segment(rows: Rows, bags: Sequence[tuple[Terms, float]]) -> Segment:
    ids = np.concatenate([terms.ids for terms, _ in bags])
    owners = np.repeat(np.arange(len(bags), dtype=np.int32), [len(terms) for terms, _ in bags])
    order = np.argsort(ids, kind="stable")
    terms, sizes = _distinct(ids[order])
    counts = np.concatenate([terms.values for terms, _ in bags])
    lengths = np.array([length for _, length in bags], np.float32)
    return Segment(terms, _starts(sizes), owners[order], counts[order], rows.astype(np.int64), lengths)


def _distinct(ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], Rows]:
    """The distinct ids of an ordered array, and how often each is there. numpy.unique would order them once more."""
    first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return ids[first], np.diff(np.append(first, len(ids)))


def _lists(segment: Segment, wanted: NDArray[np.uint32]) -> list[tuple[int, slice]]:
    """For each wanted term in the segment, its number and the range of its entries."""
    at = np.searchsorted(segment.terms, wanted)
    known = np.flatnonzero(segment.terms[np.minimum(at, len(segment.terms) - 1)] == wanted)
    starts, ends = segment.starts[at[known]].tolist(), segment.starts[at[known] + 1].tolist()
    return [(term, slice(start, end)) for term, start, end in zip(known.tolist(), starts, ends, strict=True)]


def _parts(
    segment: Segment, query: LexicalQuery, lists: list[tuple[int, slice]]
) -> tuple[NDArray[np.int32], Counts, NDArray[np.uint32]]:
    """For each entry its document, its share of the score, and its term.

    The same operations on float32 numbers as lexical.contributions, so that the results agree to the last bit.
    """
    documents = np.concatenate([segment.documents[place] for _, place in lists])
    parts = np.concatenate([segment.counts[place] for _, place in lists])
    half = np.broadcast_to(np.asarray(half_counts(segment.lengths, query), np.float32), segment.lengths.shape)
    parts /= parts + half.take(documents)
    numbers = [term for term, _ in lists]
    sizes = [place.stop - place.start for _, place in lists]
    parts *= np.repeat(query.terms.values[numbers], sizes)
    return documents, parts, np.repeat(query.terms.ids[numbers], sizes)


def _add_up(scores: NDArray[np.float64], found: list[tuple[Rows, Counts]]) -> None:
    if found:
        rows, parts = (np.concatenate(each) for each in zip(*found, strict=True))
        rows[rows == _DEAD] = len(scores) - 1
        scores += np.bincount(rows, parts, len(scores))


def _mapped(values: NDArray[Any], folder: Path) -> NDArray[Any]:
    """The values in a file without a name, which exists as long as it is mapped."""
    with tempfile.TemporaryFile(dir=folder) as file:
        values.tofile(file)
        return np.memmap(file, values.dtype, "r")


def _starts(sizes: Rows) -> Rows:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _grown(array: NDArray[np.int32], least: int) -> NDArray[np.int32]:
    grown = np.full(max(least, 2 * len(array), 1024), _DEAD, np.int32)
    grown[: len(array)] = array
    return grown
