"""EVIDENCE: papers ranked by the spans for which others cite them (ILCiteR §6). Nothing is trained.

A short query ranks the spans by BM25-Okapi and BM25+ together; a long one by BM25+ and the cosine of vectors. The paper
does not say how it puts two rankings together. Here a span's place is the mean of its two ranks, which is the simplest
reading of "rank ensemble"; a span that one ranking left out stands behind all that it ranked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from citewell.recommender.ports import Evidence, FoundSpan, Spans
from citewell.scholarly.papers import Paper
from citewell.scholarly.queries import Query
from citewell.scholarly.spans import spans
from citewell.scholarly.words import words

PREFETCH = 50
"""How many spans each ranking contributes; ILCiteR found no gain in more."""
LONG = 2.5
"""A query is long from so many mean span lengths on (ILCiteR §7.3)."""


@dataclass(frozen=True, slots=True)
class RankedPaper:
    """A paper to be cited, and the best span that others cite it for."""

    paper: Paper
    best_rank: int
    """1-indexed rank of its best span."""
    support: int
    """How often it was cited, over all spans found."""
    evidence: Evidence


def query_text(query: Query) -> str:
    """The part of the query that spans are compared with: the span at the marker, else the title, else the abstract."""
    if query.context.strip():
        return spans(query.context)[0].of(query.context)
    return query.title.strip() or query.abstract


def is_long(text: str, mean_length: float) -> bool:
    """Whether the query says so much that its vector is worth more than its words."""
    return mean_length > 0 and len(words(text)) >= LONG * mean_length


def rank_spans(found: Spans, text: str) -> list[FoundSpan]:
    """The candidates of the two lexical rankings, best first, ties by text."""
    candidates = [span for span in found.spans if span.okapi_rank or span.plus_rank]
    plus = _ranks((span.text, span.plus_rank) for span in candidates)
    if is_long(text, found.mean_length):
        nearest = sorted(candidates, key=lambda span: (-span.cosine, span.text))
        second = {span.text: float(rank) for rank, span in enumerate(nearest, 1)}
    else:
        second = _ranks((span.text, span.okapi_rank) for span in candidates)
    return sorted(candidates, key=lambda span: (plus[span.text] + second[span.text], span.text))


def rank_papers(ranked: Sequence[FoundSpan], papers: Mapping[str, Paper]) -> list[RankedPaper]:
    """The papers by (rank of their best span ↑, support over all spans ↓, year ↓), ties by id.

    Papers that `papers` does not know cannot be answers. A paper's evidence is its best span.
    """
    best: dict[str, tuple[int, Evidence]] = {}
    support: dict[str, int] = {}
    for rank, span in enumerate(ranked, 1):
        for paper_id, evidence in span.papers.items():
            if paper_id in papers:
                best.setdefault(paper_id, (rank, evidence))
                support[paper_id] = support.get(paper_id, 0) + evidence.support
    found = [
        RankedPaper(papers[paper_id], rank, support[paper_id], replace(evidence, score=1 / rank))
        for paper_id, (rank, evidence) in best.items()
    ]
    return sorted(found, key=lambda one: (one.best_rank, -one.support, -one.paper.published.year, one.paper.id))


def _ranks(ranks: Iterable[tuple[str, int]]) -> dict[str, float]:
    """The ranks by text; those left out come behind all others."""
    told = dict(ranks)
    behind = max(told.values(), default=0) + 1
    return {text: float(rank or behind) for text, rank in told.items()}
