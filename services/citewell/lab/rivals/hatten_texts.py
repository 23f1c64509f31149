"""The words of all papers and contexts of a data set as HAtten reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.experiment import Experiment
from citewell.lab.rivals.hatten_model import HAttenEncoder, Paragraphs, ParagraphType
from citewell.lab.rivals.word_vectors import WordIds, Words, learn_vectors, read_vectors
from citewell.profiler.profiles import Vectors
from citewell.scholarly.contexts import TARGET

_LEARNT_FROM = 10_000
"""Papers whose text the word vectors are learnt from, besides all train contexts."""


class TextSettings(Protocol):
    """What of HAtten's settings decides how texts are read."""

    @property
    def word_vectors(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def least_often(self) -> int: ...
    @property
    def title_words(self) -> int: ...
    @property
    def abstract_words(self) -> int: ...
    @property
    def context_words(self) -> int: ...
    @property
    def seed(self) -> int: ...


class HAttenTexts:
    """Word numbers of every title, abstract and context."""

    def __init__(self, data: Dataset, words: Words, settings: TextSettings) -> None:
        self._citing = data.contexts.citing
        self.titles = words.ids(data.papers.titles, settings.title_words)
        self.abstracts = words.ids(data.papers.abstracts, settings.abstract_words)
        self.contexts = words.ids(data.contexts.texts, settings.context_words, around=TARGET.lower())

    def papers(self, rows: Rows) -> list[Paragraphs]:
        """The fields of some papers."""
        return [
            _field(ParagraphType.TITLE, self.titles[rows]),
            _field(ParagraphType.ABSTRACT, self.abstracts[rows]),
        ]

    def queries(self, rows: Rows) -> list[Paragraphs]:
        """The fields of some queries (rows of the contexts): the citing paper's title and abstract, and the context."""
        return [*self.papers(self._citing[rows].astype(np.int64)), _field(ParagraphType.CONTEXT, self.contexts[rows])]

    def paper_words(self, paper: int) -> NDArray[np.int32]:
        """The distinct words of a paper, 0 among them."""
        return np.unique(np.concatenate([self.titles[paper], self.abstracts[paper]]))

    def query_words(self, query: int) -> NDArray[np.int32]:
        """The distinct words of a query, 0 among them."""
        return np.union1d(self.paper_words(int(self._citing[query])), self.contexts[query])


def words_of(experiment: Experiment, settings: TextSettings) -> tuple[Words, NDArray[np.float32]]:
    """The words of the train corpus with their vectors: from the user's file, or learnt from that corpus.

    The train corpus: titles and abstracts of the papers that no query of the evaluation comes from, and train contexts.
    """
    data = experiment.data
    barred = np.union1d(data.split_papers["validation"], data.split_papers["test"])
    papers = np.setdiff1d(np.arange(len(data.papers)), barred)
    known = np.flatnonzero(np.isin(data.contexts.citing, data.split_papers["train"]))
    with_abstract = papers[[bool(data.papers.abstracts[int(row)]) for row in papers]]
    drawn = np.random.default_rng(settings.seed).permutation(with_abstract)[:_LEARNT_FROM]

    def texts() -> Iterator[str]:
        yield from (data.papers.titles[int(row)] for row in papers)
        yield from (data.papers.abstracts[int(row)] for row in drawn)
        yield from (data.contexts.texts[int(row)] for row in known)

    words = Words.frequent(texts(), settings.vocabulary, settings.least_often)
    if settings.word_vectors:
        return read_vectors(Path(settings.word_vectors), words)
    longest = max(settings.title_words, settings.abstract_words, settings.context_words)
    return words, learn_vectors(words.ids(texts(), longest), len(words), settings.dimensions, seed=settings.seed)


def encoded(model: HAttenEncoder, texts: HAttenTexts, rows: Rows, *, queries: bool, batch: int = 256) -> Vectors:
    """The vectors of some papers or queries; those of similar length are computed together."""
    model.eval()
    lengths: NDArray[Any] = (texts.contexts[rows] if queries else texts.abstracts[rows]).astype(bool).sum(axis=1)
    out = np.empty((len(rows), model.words.shape[1]), np.float32)
    order = np.argsort(lengths, kind="stable")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(rows), batch):
            some = order[start : start + batch]
            fields = texts.queries(rows[some]) if queries else texts.papers(rows[some])
            out[some] = model(fields).numpy()
    return out


def _field(kind: ParagraphType, words: WordIds) -> Paragraphs:
    return Paragraphs(kind, torch.from_numpy(words.astype(np.int64)))
