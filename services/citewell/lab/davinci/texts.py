"""The reranker's input from a data set: queries, candidates, and the text-level public profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citewell.lab.dataset import Dataset, Rows
from citewell.reranker.pairs import CandidateText
from citewell.scholarly.queries import Query


@dataclass(frozen=True, slots=True, eq=False)
class Mentions:
    """The contexts that cite each paper; the reranker reads those most similar to the query."""

    data: Dataset
    rows: Rows
    """Known contexts, ordered by the paper they cite."""
    starts: NDArray[np.int64]
    """Where each paper's contexts start in `rows`."""
    vectors: NDArray[np.floating]
    """Unit vectors of all contexts, including the queries', to measure similarity."""
    count: int
    """The most contexts that the reranker reads."""

    def of(self, query: int, paper: int) -> tuple[str, ...]:
        """Contexts that cite `paper`, most similar first; never one of the query's own citing paper."""
        contexts = self.data.contexts
        rows = self.rows[self.starts[paper] : self.starts[paper + 1]]
        rows = rows[contexts.citing[rows] != contexts.citing[query]]
        if not len(rows) or not self.count:
            return ()
        fit = self.vectors[rows].astype(np.float32) @ self.vectors[query].astype(np.float32)
        return tuple(contexts.texts[int(row)] for row in rows[np.argsort(-fit, kind="stable")[: self.count]])


def make_mentions(data: Dataset, knowledge: Rows, vectors: NDArray[np.floating], count: int) -> Mentions:
    """The mentions in the `knowledge` of a task: contexts of train papers only."""
    cited = data.contexts.cited[knowledge]
    order = np.argsort(cited, kind="stable")
    starts = np.searchsorted(cited[order], np.arange(len(data.papers) + 1))
    return Mentions(data, knowledge[order], starts.astype(np.int64), vectors, count)


@dataclass(frozen=True, slots=True, eq=False)
class PairTexts:
    """Looks up the texts of queries and candidates by their rows."""

    data: Dataset
    mentions: Mentions | None = None
    abstracts: bool = True
    """False leaves all abstracts out, as if the data set had none."""

    def query(self, row: int) -> Query:
        """S, T, A of the context in `row`."""
        contexts, papers = self.data.contexts, self.data.papers
        citing = int(contexts.citing[row])
        return Query(contexts.texts[row], papers.titles[citing], self._abstract(citing))

    def candidate(self, query: int, paper: int) -> CandidateText:
        """T_c, A_c of a paper, and its citing contexts most similar to the query."""
        papers = self.data.papers
        said = self.mentions.of(query, paper) if self.mentions else ()
        return CandidateText(papers.titles[paper], self._abstract(paper), said)

    def _abstract(self, paper: int) -> str:
        return self.data.papers.abstracts[paper] if self.abstracts else ""
