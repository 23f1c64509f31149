"""The papers of one view in memory: profiles, bags of words, and the columns that filters look at."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from citewell.index.dense import Dense, Int8
from citewell.index.faiss_index import FaissIndex
from citewell.index.hybrid import cosines, named, to_rank, to_score, total
from citewell.index.points import HYBRID, LEXICAL, PROFILE, TERMS, Point, unpack
from citewell.index.postings import Postings
from citewell.index.rows import Rows
from citewell.index.second_phase import DEPTH
from citewell.index.second_phase_copy import SecondPhaseCopy
from citewell.index.second_phase_model import SecondScore
from citewell.index.store import Nearest
from citewell.scholarly.lexical import NO_TERMS, Terms

Form = Literal["flat", "sq8", "gpu"]

_ROUNDING = 1e-5
"""An upper bound of the error of float32 cosines of unit vectors."""


_FORMS: dict[Form, type[Dense | Int8 | FaissIndex]] = {"flat": Dense, "sq8": Int8, "gpu": FaissIndex}


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A paper found, with the parts of its score. From int8 profiles, score and profile are approximate."""

    id: UUID
    score: float
    profile: float
    lexical: float
    matched: Terms
    second: SecondScore | None = None


class PaperCopy:
    """The copy of one view. Searches may run in parallel; `put` needs exclusive access."""

    def __init__(self, dimension: int, form: Form = "flat", words_folder: Path | None = None) -> None:
        """Large parts of the words are kept in files of `words_folder`, if one is given."""
        self.rows, self.postings = Rows(), Postings(words_folder)
        self._dense = _FORMS[form](dimension)
        self._second = SecondPhaseCopy() if form == "flat" else None

    @property
    def words(self) -> tuple[Postings, ...]:
        """Bags of words and words of titles. After `put`, their segments that are due are to be merged."""
        return (self.postings,) if self._second is None else (self.postings, self._second.titles)

    def put(self, points: Sequence[Point]) -> None:
        """Stores new versions and removes hidden papers."""
        hidden = [point for point in points if point.payload["hidden"]]
        shown = [point for point in points if not point.payload["hidden"]]
        removed = self.rows.remove(hidden)
        self.postings.remove(removed)
        if self._second is not None:
            self._second.remove(removed)
        self._dense.remove(removed)
        if shown:
            rows = self.rows.put(shown)
            self._dense.put(rows, np.stack([point.dense(PROFILE) for point in shown]))
            bags = [(unpack(point.payload[TERMS]), float(point.payload["length"])) for point in shown]
            self.postings.put(rows, bags)
            if self._second is not None:
                self._second.put(rows, shown)

    def search(self, query: Nearest, helper: Executor) -> list[Ranked]:
        """The best of all admitted papers, in order.

        Every paper is scored in float32, which is fast; those near the limit are scored again in float64. A paper's
        score then depends only on its own vector and words, not on its row or on earlier versions. With int8 profiles
        the answer has `to_score(query)` candidates, which the caller scores by their full vectors, and no second phase.
        Profiles on a GPU can be searched by `nearest` and `promising` only.
        """
        exact = query.field == LEXICAL or isinstance(self._dense, Dense)
        limit = to_rank(query) if exact else to_score(query)
        count = len(self.rows)
        by_profile = None
        if query.field != LEXICAL:
            assert isinstance(self._dense, Dense | Int8)
            assert isinstance(query.vector, np.ndarray)
            by_profile = helper.submit(self._dense.scores, query.vector, count)
        lexical = self.postings.scores(query.lexical, count) if query.lexical else np.zeros(count)
        fast = lexical if by_profile is None else by_profile.result().astype(np.float64)
        if query.field == HYBRID:
            assert query.lexical
            fast += query.lexical.weight * lexical
        admitted = self.rows.admitted(query.conditions)
        if query.field == LEXICAL:
            admitted &= lexical > 0
        chosen = _near_the_top(fast, np.flatnonzero(admitted), limit)
        profile = np.zeros(len(chosen))
        if by_profile is not None and not exact:
            profile = by_profile.result()[chosen].astype(np.float64)
        elif isinstance(self._dense, Dense) and isinstance(query.vector, np.ndarray):
            profile = cosines(self._dense.rows(chosen), query.vector)
        found = [
            (-total(query, cosine, words), self.rows.keys[row], row, cosine, words)
            for row, cosine, words in zip(chosen.tolist(), profile.tolist(), lexical[chosen].tolist(), strict=True)
        ]
        best = sorted(found)[:limit]
        again = self._ranked_again(query, best[:DEPTH])
        if again:
            best = [*(best[one.first_rank - 1] for one in again), *best[DEPTH:]]
        if exact:
            best = best[: query.limit]
        seconds = [*again, *[None] * len(best)]
        matched = [NO_TERMS] * len(best)
        if query.lexical and query.matched_terms:
            rows = np.array([row for _, _, row, _, _ in best], dtype=np.int64)
            matched = self.postings.matched(query.lexical, rows, query.matched_terms)
        return [
            Ranked(self.rows.id(row), -score, cosine, words, terms, second)
            for (score, _, row, cosine, words), terms, second in zip(best, matched, seconds, strict=False)
        ]

    def _ranked_again(self, query: Nearest, best: Sequence[tuple[float, str, int, float, float]]) -> list[SecondScore]:
        """The first `query.limit` of the best papers in the order of the second phase; empty without one."""
        if query.second is None or not best:
            return []
        assert query.lexical
        assert self._second is not None
        assert isinstance(self._dense, Dense)
        score, keys, rows, cosine, words = zip(*best, strict=True)
        scores = -np.array(score), np.array(cosine), np.array(words)
        chosen = np.array(rows, dtype=np.int64)
        candidates = self._second.candidates(chosen, scores, query.lexical.terms, self._dense, self.postings)
        return query.second.ranked(query.lexical.mean_length, candidates, keys, query.limit)

    def nearest(self, query: Nearest, limit: int) -> list[tuple[UUID, float]] | None:
        """The nearest profiles on a GPU; None when it cannot answer the query."""
        assert isinstance(self._dense, FaissIndex)
        assert isinstance(query.vector, np.ndarray)
        found = self._dense.nearest(query.vector, limit, self.rows.admitted(query.conditions))
        if found is None:
            return None
        rows, scores = found
        return [(self.rows.id(row), score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def promising(self, query: Nearest) -> list[UUID] | None:
        """The papers with the best scores, among the candidates of either part. For profiles on a GPU.

        None when it cannot answer the query.
        """
        assert isinstance(self._dense, FaissIndex)
        assert isinstance(query.vector, np.ndarray)
        assert query.lexical
        admitted = self.rows.admitted(query.conditions)
        nearest = self._dense.nearest(query.vector, min(named(query), self._dense.most), admitted)
        if nearest is None:
            return None
        lexical = self.postings.scores(query.lexical, len(self.rows))
        others = admitted & (lexical > 0)
        others[nearest[0]] = False
        by_words = _near_the_top(lexical, np.flatnonzero(others), named(query))
        by_words = by_words[np.argsort(-lexical[by_words], kind="stable")][: named(query)]
        others[:] = False
        others[by_words] = True
        cosines_of_others = self._dense.nearest(query.vector, len(by_words), others)
        if cosines_of_others is None:  # unknown cosines: at most the lowest cosine among the candidates
            cosines_of_others = by_words, np.full(len(by_words), nearest[1].min(initial=1.0), np.float32)
        rows = np.concatenate([nearest[0], cosines_of_others[0]])
        sums = np.concatenate([nearest[1], cosines_of_others[1]]) + query.lexical.weight * lexical[rows]
        best = rows[np.argsort(-sums, kind="stable")[: to_score(query)]]
        return [self.rows.id(row) for row in best.tolist()]


def _near_the_top(scores: NDArray[np.float64], rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """The rows that can be among the best `limit` once their scores are exact."""
    if len(rows) <= limit:
        return rows
    candidates = scores[rows]
    least = np.partition(candidates, len(candidates) - limit)[len(candidates) - limit]
    return np.asarray(rows[candidates >= least - 2 * _ROUNDING])
