"""Lexical retrieval: plain BM25, and the lexical public profile.

The lexical public profile of a paper is one weighted bag of words from its title, its abstract and the contexts that
cite it, scored by BM25. The query's words are weighted too: a word counts more the nearer it is to the marker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.knowledge import Citations
from citewell.lab.systems import by_citing_paper
from citewell.profiler.lexical import Bm25, FieldWeights, Ids, TermWeights
from citewell.profiler.profiles import Vectors
from citewell.profiler.query_words import WordWeights, word_values
from citewell.profiler.term_weights import LearnedWeights
from citewell.scholarly.contexts import TARGET, normalise
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, saturated
from citewell.scholarly.queries import Query
from citewell.scholarly.words import term_id, words

Matrix = Any
"""A scipy sparse matrix; scipy has no types."""


class Lexicon:
    """The words of a data set's titles, abstracts and contexts, counted once and used for all settings."""

    def __init__(self, data: Dataset) -> None:
        self._columns: dict[int, int] = {}
        fields = [self._count(texts) for texts in (data.papers.titles, data.papers.abstracts, data.contexts.texts)]
        self.titles, self.abstracts, self.contexts = (self._matrix(*field) for field in fields)
        self._data = data

    def _count(self, texts: Iterable[str]) -> tuple[list[int], list[int]]:
        numbers, ends = [], [0]
        for text in texts:
            known = (term_id(word) for word in words(normalise(text)) if word != TARGET.lower())
            numbers += [self._columns.setdefault(term, len(self._columns)) for term in known]
            ends.append(len(numbers))
        return numbers, ends

    def _matrix(self, numbers: list[int], ends: list[int]) -> Matrix:
        ones = np.ones(len(numbers), np.float32)
        matrix = sparse.csr_matrix((ones, numbers, ends), shape=(len(ends) - 1, len(self._columns)))
        matrix.sum_duplicates()
        return matrix

    def column(self, term: int) -> int:
        """The column of a term that occurs in the data set."""
        return self._columns[term]

    def columns(self, terms: Ids) -> Rows:
        """The columns of terms that occur in the data set."""
        return np.array([self._columns[term] for term in terms.tolist()], np.int64)


class LexicalProfile:
    """BM25 over bags of words from papers and the contexts that cite them."""

    def __init__(
        self,
        name: str,
        data: Dataset,
        lexicon: Lexicon,
        known: Citations,
        bm25: Bm25,
        fields: FieldWeights,
        terms: TermWeights,
        counted: NDArray[np.bool_] | None = None,
        *,
        alone: bool = False,
        learned: LearnedWeights | None = None,
    ) -> None:
        """`counted`: the papers that there were when the word statistics were made; None = all of them. `alone`: the
        queries are drafts without their contexts. `learned`: learned weights of the words near the marker."""
        self.name, self._alone = name, alone
        self._data, self._lexicon, self._known = data, lexicon, known
        self._bm25, self._fields = bm25, fields
        self._words = WordWeights(terms=terms, alone=terms, learned=learned)
        papers = len(data.papers)
        self._distinct = _distinct(data, known)
        rows = known.contexts[self._distinct]
        said = _incidence(data.contexts.cited[rows], papers) @ lexicon.contexts[rows]
        self._counts = (
            fields.title * lexicon.titles + fields.abstract * lexicon.abstracts + fields.contexts * said
        ).tocsr()
        bags = self._counts
        if counted is not None:
            rows = rows[counted[data.contexts.citing[rows]]]
            said = _incidence(data.contexts.cited[rows], papers) @ lexicon.contexts[rows]
            own = fields.title * lexicon.titles + fields.abstract * lexicon.abstracts
            bags = (own + fields.contexts * said).tocsr()[np.flatnonzero(counted)]
            papers = bags.shape[0]
        self._mean_length = float(bags.sum()) / papers
        frequency = np.bincount(bags.indices, minlength=bags.shape[1])
        self._idf = np.log(1 + (papers - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
        self._weights = self._weigh(self._counts).T.tocsr()

    @property
    def mean_length(self) -> float:
        """The mean length of a bag of words."""
        return self._mean_length

    @property
    def idf(self) -> NDArray[np.float32]:
        """The idf of each column of the lexicon."""
        idf: NDArray[np.float32] = self._idf
        return idf

    def counts(self, papers: Rows) -> Matrix:
        """The bags of words of these papers."""
        return self._counts[papers]

    def counts_without(self, citing: int) -> tuple[Rows, Matrix]:
        """The papers that a paper cites, and their bags without what it says of them."""
        its = self._known.contexts_of_paper(citing)
        own = self._known.contexts[its][self._distinct[its]]
        cited, position = np.unique(self._data.contexts.cited[own], return_inverse=True)
        others = self._counts[cited] - self._fields.contexts * (
            _incidence(position, len(cited)) @ self._lexicon.contexts[own]
        )
        others.data[others.data < 1e-6] = 0  # remove rounding errors of words that only this paper uses
        others.eliminate_zeros()
        return cited.astype(np.int64), others.tocsr()

    def _weigh(self, counts: Matrix) -> Matrix:
        """What every word of some bags of words adds to a score, for each unit of weight that the query gives it."""
        rules = LexicalQuery(NO_TERMS, 1.0, self._bm25.k1, self._bm25.b, self._mean_length)
        lengths = np.repeat(np.asarray(counts.sum(axis=1)).ravel(), np.diff(counts.indptr))
        weighted = counts.copy()
        weighted.data = saturated(counts.data, lengths, rules).astype(np.float32)
        return weighted

    def word_values(self, query: int) -> tuple[Ids, NDArray[np.float64]]:
        """The terms of a query and their weights, by the function that the profiler uses."""
        papers, citing = self._data.papers, int(self._data.contexts.citing[query])
        context = "" if self._alone else self._data.contexts.texts[query]
        asked = Query(context, papers.titles[citing], papers.abstracts[citing])
        return word_values(asked, self._words, lambda terms: self._idf[self._lexicon.columns(terms)])

    def _query_words(self, queries: Rows) -> Matrix:
        """[queries, columns]: the weights of each query's words."""
        words = [self.word_values(int(query)) for query in queries]
        ends = np.cumsum([0, *(len(ids) for ids, _ in words)])
        columns = [self._lexicon.columns(ids) for ids, _ in words]
        values = np.concatenate([values for _, values in words]).astype(np.float32)
        return sparse.csr_matrix((values, np.concatenate(columns), ends), shape=(len(queries), len(self._idf)))

    def scores(self, queries: Rows) -> Vectors:
        terms = self._query_words(queries)
        scores: Vectors = (terms @ self._weights).toarray()
        for citing, rows in by_citing_paper(self._data, queries, self._known):
            cited, others = self.counts_without(citing)
            scores[np.ix_(rows, cited)] = (terms[rows] @ self._weigh(others).T).toarray()
        return scores


def _distinct(data: Dataset, known: Citations) -> NDArray[np.bool_]:
    """The known contexts without repetitions. As in the ledger, equal texts of one pair count once."""
    kept = np.ones(len(known.contexts), np.bool_)
    for pair in np.split(np.arange(len(kept)), known.starts[1:]):
        seen: set[str] = set()
        for at in pair if len(pair) > 1 else ():
            text = normalise(data.contexts.texts[int(known.contexts[at])])
            kept[at] = text not in seen
            seen.add(text)
    return kept


def _incidence(targets: NDArray[Any], size: int) -> Matrix:
    """A matrix that, multiplied with another, adds the other's row k to row targets[k]."""
    ones = np.ones(len(targets), np.float32)
    return sparse.csr_matrix((ones, (targets, np.arange(len(targets)))), shape=(size, len(targets)))


class PlainBm25:
    """bm25s with its own tokeniser, k1 = 1.2, b = 0.75; the query is the context and, at half weight, the title."""

    def __init__(self, name: str, data: Dataset, known: Citations | None) -> None:
        self.name = name
        self._data, self._known = data, known
        said: dict[int, list[str]] = {}
        if known is not None:
            for row in known.contexts:
                said.setdefault(int(data.contexts.cited[row]), []).append(data.contexts.texts[int(row)])
        papers = zip(data.papers.titles, data.papers.abstracts, strict=True)
        texts = [" ".join([*paper, *said.get(row, ())]) for row, paper in enumerate(papers)]
        self._index = bm25s.BM25(k1=1.2, b=0.75)
        self._index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def scores(self, queries: Rows) -> Vectors:
        if self._known is not None and by_citing_paper(self._data, queries, self._known):
            raise ValueError(f"{self.name} cannot leave a train paper's own contexts out; use LexicalProfile")
        contexts, titles = self._data.contexts, self._data.papers.titles
        rows = [
            self._score(contexts.texts[int(query)]) + 0.5 * self._score(titles[int(contexts.citing[query])])
            for query in queries
        ]
        return np.stack(rows).astype(np.float32)

    def _score(self, text: str) -> NDArray[Any]:
        tokens = bm25s.tokenize(text, return_ids=False, show_progress=False)[0]
        known = [token for token in tokens if token in self._index.vocab_dict]
        return np.asarray(self._index.get_scores(known)) if known else np.zeros(len(self._data.papers), np.float32)
