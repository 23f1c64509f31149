"""A data set in columns. Texts are in one byte buffer, all else in arrays, so millions of contexts fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from citewell.corpora.readers import SPLITS, OnReject, Reject, read_contexts, read_papers, read_splits

Rows = NDArray[np.int64]
Column = NDArray[np.int32]
NO_SPLIT = -1


class TextColumn(Sequence[str]):
    """A growing list of strings kept as UTF-8 in one buffer."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._buffer, self._ends = bytearray(), array("q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self._buffer += text.encode("utf-8", errors="replace")
        self._ends.append(len(self._buffer))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._buffer[self._ends[row] : self._ends[row + 1]].decode("utf-8")


class IdIndex:
    """Finds the row of an id by its 64-bit hash, which needs far less memory than a dictionary of strings."""

    def __init__(self, ids: TextColumn) -> None:
        hashes = np.fromiter((_hash(identifier) for identifier in ids), dtype=np.uint64, count=len(ids))
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]
        self.repeated: Rows = np.sort(self._order[1:][self._sorted[1:] == self._sorted[:-1]])
        """Rows whose id also occurs in an earlier row."""

    def row(self, identifier: str) -> int:
        """The first row that holds the id, or -1."""
        wanted = np.uint64(_hash(identifier))
        at = int(np.searchsorted(self._sorted, wanted))
        return int(self._order[at]) if at < len(self._sorted) and self._sorted[at] == wanted else -1


def _hash(identifier: str) -> int:
    return int.from_bytes(blake2b(identifier.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True, eq=False)
class Papers:
    """The papers of a data set, one row each, in file order."""

    ids: TextColumn
    titles: TextColumn
    abstracts: TextColumn
    year: Column
    """0 when unknown."""
    first_day: Column
    """First day on which it may have appeared, in days since year 1; 0 when unknown."""
    last_day: Column
    """Last day on which it may have appeared: for a paper known only by year, that year's last day."""
    authors: Sequence[str]
    """Their names, one a line; empty where the set names none."""
    venues: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Contexts:
    """The citation contexts of a data set, one row each, in file order; citing and cited are rows of the papers."""

    ids: TextColumn
    texts: TextColumn
    citing: Column
    cited: Column
    first_day: Column
    """First day on which the citing paper may have appeared."""
    group: Column
    """The number of works in the target's citation bracket; 0 when unknown."""
    source: Column
    """Index into `sources`."""
    sources: tuple[str, ...]
    split: Column
    """Index into `SPLITS`, or -1."""

    def __len__(self) -> int:
        return len(self.ids)

    def of_split(self, split: str) -> Rows:
        """The rows of one split."""
        return np.flatnonzero(self.split == SPLITS.index(split))


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """One data set with its splits, and counts of what was left out in reading."""

    name: str
    papers: Papers
    contexts: Contexts
    split_papers: dict[str, Rows]
    """The citing papers of each split."""
    rejects: tuple[Reject, ...]

    def titles_only(self) -> Dataset:
        """The same set without abstracts. In acl, having an abstract leaks the answer, so reports show both figures."""
        papers = replace(self.papers, abstracts=TextColumn("" for _ in range(len(self.papers))))
        return replace(self, name=f"{self.name}, titles only", papers=papers)


def read_dataset(folder: Path) -> Dataset:
    """The data set in `folder` (see `readers` for the formats)."""
    rejects: list[Reject] = []
    papers, paper_index = _papers(folder, rejects.append)
    contexts = _contexts(folder, papers, paper_index, rejects.append)
    split_papers = _assign_splits(folder, contexts, paper_index, rejects.append)
    return Dataset(folder.name, papers, contexts, split_papers, tuple(rejects))


def _papers(folder: Path, on_reject: OnReject) -> tuple[Papers, IdIndex]:
    ids, titles, abstracts = TextColumn(), TextColumn(), TextColumn()
    authors, venues = TextColumn(), TextColumn()
    year, first_day, last_day = array("i"), array("i"), array("i")
    for record in read_papers(folder, on_reject):
        ids.append(record.id)
        titles.append(record.title)
        abstracts.append(record.abstract)
        year.append(record.published.year)
        first_day.append(record.published.first_day())
        last_day.append(record.published.last_day())
        authors.append("\n".join(record.authors))
        venues.append(record.venue)
    index = IdIndex(ids)
    if len(index.repeated):
        raise ValueError(f"{folder.name}: paper id {ids[int(index.repeated[0])]!r} stands for two papers")
    days = _column(year), _column(first_day), _column(last_day)
    return Papers(ids, titles, abstracts, *days, authors, venues), index


def _contexts(folder: Path, papers: Papers, paper_index: IdIndex, on_reject: OnReject) -> Contexts:
    ids, texts = TextColumn(), TextColumn()
    citing, cited, first_day, group, source = (array("i") for _ in range(5))
    sources: dict[str, int] = {}
    for record in read_contexts(folder, on_reject):
        pair = paper_index.row(record.citing_id), paper_index.row(record.cited_id)
        if min(pair) < 0:
            missing = record.citing_id if pair[0] < 0 else record.cited_id
            on_reject(Reject("contexts", record.line, f"no paper has the id {missing!r}"))
            continue
        ids.append(record.id)
        texts.append(record.text)
        citing.append(pair[0])
        cited.append(pair[1])
        first_day.append(record.published.first_day() or int(papers.first_day[pair[0]]))
        group.append(record.group)
        source.append(sources.setdefault(record.source, len(sources)))
    return Contexts(
        ids,
        texts,
        _column(citing),
        _column(cited),
        _column(first_day),
        _column(group),
        _column(source),
        tuple(sources),
        np.full(len(ids), NO_SPLIT, np.int32),
    )


def _assign_splits(folder: Path, contexts: Contexts, paper_index: IdIndex, on_reject: OnReject) -> dict[str, Rows]:
    """Sets the split of every context, and returns the citing papers of each split."""
    citing: dict[str, set[int]] = {split: set() for split in SPLITS}
    context_index: IdIndex | None = None
    for record in read_splits(folder, on_reject):
        if record.by_citing_paper:
            row = paper_index.row(record.key)
            paper = row
        else:
            context_index = context_index or IdIndex(contexts.ids)
            row = context_index.row(record.key)
            paper = int(contexts.citing[row])
        if row < 0:
            on_reject(Reject("splits", 0, f"{record.split} names {record.key!r}, which was not read"))
            continue
        citing[record.split].add(paper)
        if not record.by_citing_paper:
            contexts.split[row] = SPLITS.index(record.split)
    split_papers = {split: np.array(sorted(members), np.int64) for split, members in citing.items()}
    if context_index is None:
        for number, split in enumerate(SPLITS):
            contexts.split[np.isin(contexts.citing, split_papers[split])] = number
    return split_papers


def _column(values: array[int]) -> Column:
    return np.frombuffer(values, dtype=np.int32) if len(values) else np.empty(0, np.int32)
