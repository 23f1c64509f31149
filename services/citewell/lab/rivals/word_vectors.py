"""Words as numbers and vectors for the rivals: from a file in GloVe's text format, else learnt from the train corpus.

Learnt vectors are the scaled left singular vectors of the positive pointwise mutual information of words that stand
within a few words of each other. That needs no long training and gives the same vectors for the same seed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citewell.scholarly.contexts import normalise

PAD = 0
"""The number of no word; its vector is zero."""
_WORD = re.compile(r"\w+")
_POWER_STEPS = 4
_SPARE = 20
"""Dimensions beyond those asked for, which make the randomised decomposition exact enough."""

WordIds = NDArray[np.int32]
"""`[texts, words]`, `PAD` at the end."""


def tokens(text: str) -> list[str]:
    """The words of a text in lower case; nothing is left out."""
    return _WORD.findall(normalise(text).lower())


class Words:
    """Known words, numbered from 1."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._number = {word: at for at, word in enumerate(self.words, 1)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def frequent(cls, texts: Iterable[str], most: int, least_often: int) -> Words:
        """The most frequent words of some texts."""
        found: Counter[str] = Counter()
        for text in texts:
            found.update(tokens(text))
        kept = [word for word, count in found.items() if count >= least_often]
        return cls(sorted(kept, key=lambda word: (-found[word], word))[:most])

    def ids(self, texts: Iterable[str], longest: int, around: str = "") -> WordIds:
        """The first `longest` known words of each text, or those nearest to `around`; unknown ones are left out."""
        rows = [self._cut(text, longest, around) for text in texts]
        out = np.zeros((len(rows), max(1, longest)), np.int32)
        for row, numbers in enumerate(rows):
            out[row, : len(numbers)] = numbers
        return out

    def _cut(self, text: str, longest: int, around: str) -> list[int]:
        known = [word for word in tokens(text) if word in self._number]
        place = known.index(around) if around in known else 0
        start = max(0, min(place - longest // 2, len(known) - longest))
        return [self._number[word] for word in known[start : start + longest]]


def read_vectors(file: Path, words: Words) -> tuple[Words, NDArray[np.float32]]:
    """Those of the words that the file has, and their vectors, with a zero row for `PAD` first.

    Each line of the file is a word and its numbers, divided by blanks.
    """
    wanted, kept, rows, size = set(words.words), [], [], 0
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            word, *values = line.split()
            if number == 1:
                size = len(values)
            if len(values) != size:
                raise ValueError(f"{file}, line {number}: {len(values)} numbers where the first line has {size}")
            if word in wanted:
                wanted.discard(word)
                kept.append(word)
                rows.append(np.array(values, np.float32))
    if not kept:
        raise ValueError(f"{file} has no word of the data set")
    return Words(kept), np.vstack([np.zeros((1, size), np.float32), *rows])


def learn_vectors(texts: WordIds, words: int, size: int, *, window: int = 5, seed: int = 0) -> NDArray[np.float32]:
    """A vector of every word from the texts in which it stands, with a zero row for `PAD` first."""
    counts = _neighbours(texts, words + 1, window)
    total, often = float(counts.sum()), np.asarray(counts.sum(axis=1)).ravel()
    pairs = counts.tocoo()
    # Neighbours are smoothed as in GloVe's and word2vec's relatives: rare ones would dominate otherwise.
    smoothed = often**0.75
    smoothed *= total / max(smoothed.sum(), 1.0)
    likely = np.log(pairs.data * total / (often[pairs.row] * smoothed[pairs.col]))
    inside = likely > 0
    shape = (words + 1, words + 1)
    information = sparse.csr_matrix(
        (likely[inside].astype(np.float32), (pairs.row[inside], pairs.col[inside])), shape=shape
    )
    return _left_vectors(information, size, seed)


def _neighbours(texts: WordIds, numbers: int, window: int) -> sparse.csr_matrix:
    found = sparse.csr_matrix((numbers, numbers), dtype=np.float32)
    for distance in range(1, min(window, texts.shape[1] - 1) + 1):
        left, right = texts[:, :-distance].ravel(), texts[:, distance:].ravel()
        both = (left != PAD) & (right != PAD)
        weight = np.full(int(both.sum()), 1.0 / distance, np.float32)
        found = found + sparse.csr_matrix((weight, (left[both], right[both])), shape=found.shape)
    return (found + found.T).tocsr()


def _left_vectors(matrix: sparse.csr_matrix, size: int, seed: int) -> NDArray[np.float32]:
    """U·√Σ of the first `size` singular values (randomised SVD), scaled to the lengths that GloVe's vectors have.

    Shorter ones would drown in the positional encoding that HAtten adds, whose length is √(size / 2).
    """
    rng = np.random.default_rng(seed)
    inner = min(size + _SPARE, matrix.shape[0])
    basis = np.linalg.qr(matrix @ rng.normal(size=(matrix.shape[1], inner)).astype(np.float32))[0]
    for _ in range(_POWER_STEPS):
        basis = np.linalg.qr(matrix @ (matrix.T @ basis))[0]
    left, values, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    out = np.zeros((matrix.shape[0], size), np.float32)
    found = ((basis @ left) * np.sqrt(values))[:, :size]
    out[:, : found.shape[1]] = found
    out[PAD] = 0
    out *= np.float32(np.sqrt(size) / 2 / max(float(np.linalg.norm(out, axis=1).mean()), 1e-9))
    return out
