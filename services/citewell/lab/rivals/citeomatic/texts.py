"""Papers as Citeomatic reads them: the word types of title and abstract, and, if wanted, authors and venue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citewell.lab.dataset import Dataset, Rows
from citewell.scholarly.contexts import normalise
from citewell.scholarly.words import words

FIELDS = ("title", "abstract")
METADATA = ("authors", "venue")
MOST_WORDS = {"title": 50, "abstract": 500}
MOST_AUTHORS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """The distinct tokens of one field of every paper."""

    starts: NDArray[np.int64]
    """[papers + 1]."""
    tokens: NDArray[np.int64]
    size: int
    """Of the vocabulary."""

    def of(self, papers: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens of some papers, one paper after the other, and where each paper's start."""
        lengths = self.starts[papers + 1] - self.starts[papers]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        return self.tokens[np.repeat(self.starts[papers], lengths) + within], starts[:-1]

    @property
    def matrix(self) -> Any:
        """One row a paper, 1 for every token it has."""
        ones = np.ones(len(self.tokens), np.float32)
        return sparse.csr_matrix((ones, self.tokens, self.starts), shape=(len(self.starts) - 1, self.size))


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """All papers of a data set."""

    fields: dict[str, Types]
    vocabulary: tuple[str, ...]
    """The words, most frequent first."""
    everything: Any
    """Title and abstract together as a matrix, for Jaccard similarity."""

    def jaccard(self, paper: int, others: Rows) -> NDArray[np.float64]:
        """The share of word types that two papers have in common."""
        both = np.asarray((self.everything[others] @ self.everything[[paper]].T).todense()).ravel().astype(np.float64)
        sizes = np.diff(self.everything.indptr)
        found: NDArray[np.float64] = both / np.maximum(sizes[others] + sizes[paper] - both, 1.0)
        return found


def read_texts(data: Dataset, most: int, least: int, *, metadata: bool) -> Texts:
    """The texts of a data set; the vocabulary counts papers that are not under evaluation."""
    outside = np.union1d(data.split_papers["validation"], data.split_papers["test"])
    seen = np.ones(len(data.papers), np.bool_)
    seen[outside] = False
    columns = {"title": data.papers.titles, "abstract": data.papers.abstracts}
    split = {name: [_distinct(text, MOST_WORDS[name]) for text in column] for name, column in columns.items()}
    counted: Counter[str] = Counter()
    for lists in split.values():
        for row in np.flatnonzero(seen).tolist():
            counted.update(lists[row])
    common = sorted(((-count, word) for word, count in counted.items() if count >= least))[:most]
    vocabulary = tuple(word for _, word in common)
    number = {word: at for at, word in enumerate(vocabulary)}
    fields = {name: _types(lists, number) for name, lists in split.items()}
    if metadata:
        authors = [tuple(islice(each.split("\n"), MOST_AUTHORS)) if each else () for each in data.papers.authors]
        venues = [(venue,) if venue else () for venue in data.papers.venues]
        fields |= {"authors": _named(authors, seen), "venue": _named(venues, seen)}
    everything = fields["title"].matrix.maximum(fields["abstract"].matrix).tocsr()
    return Texts(fields, vocabulary, everything)


def _distinct(text: str, most: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(islice(words(normalise(text)), most)))


def _types(lists: Sequence[Iterable[str]], number: dict[str, int]) -> Types:
    tokens, starts = [], [0]
    for one in lists:
        tokens += [number[word] for word in one if word in number]
        starts.append(len(tokens))
    return Types(np.array(starts, np.int64), np.array(tokens, np.int64), len(number))


def _named(lists: Sequence[tuple[str, ...]], seen: NDArray[np.bool_]) -> Types:
    known = sorted({name for row in np.flatnonzero(seen).tolist() for name in lists[row]})
    return _types(lists, {name: at for at, name in enumerate(known)})
