"""Options of a query. Unset options have the service's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from citewell.recommender.v1 import recommender_pb2
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.queries import AsOf, Query, Strategy
from citewell.types.messages import filter_to_message
from citewell.types.v1 import paper_pb2


@dataclass(frozen=True, slots=True)
class Options:
    """Options of Recommend and Explain; the fields and their limits are those of the contract."""

    top_k: int = 0
    """How many papers, 1 to 100; 0 = the service's default."""
    candidates: int = 0
    """How many papers to retrieve, 1 to 1000; 0 = the service's default."""
    filter: SearchFilter = field(default_factory=SearchFilter)
    as_of: AsOf = AsOf.FILTER
    """With KNOWLEDGE, citations made on or after `filter.published_before` do not count in any score."""
    evidence_per_item: int | None = None
    """Citing contexts per paper, 0 to 20; None = the service's default."""
    strategy: Strategy | None = None
    """None = the service's default."""
    rerank: bool = True
    rerank_depth: int = 0
    """How many candidates the reranker reads; 0 = the service's default."""
    diversity: float = 0.0
    """0 (relevance only) to 1."""
    full: bool = False
    """Whether papers come with abstracts and other ids."""
    min_watermark: tuple[str, ...] = ()
    """Tokens of publications that the answer must include; the call fails if they are not searchable in time."""
    exact: bool = False
    allow_partial: bool = False
    min_confidence: float = 0.0
    """Leave out papers with a lower confidence, 0 to 1."""


DEFAULTS = Options()


def options_to_message(options: Options) -> recommender_pb2.Options:
    strategy = f"STRATEGY_{options.strategy.value if options.strategy else 'UNSPECIFIED'}"
    return recommender_pb2.Options(
        top_k=options.top_k,
        candidates=options.candidates,
        filter=filter_to_message(options.filter),
        as_of=recommender_pb2.AsOf.Value(f"AS_OF_{options.as_of.value}"),
        evidence_per_item=options.evidence_per_item,
        strategy=recommender_pb2.Strategy.Value(strategy),
        rerank=options.rerank,
        rerank_depth=options.rerank_depth,
        diversity=options.diversity,
        view=paper_pb2.PAPER_VIEW_FULL if options.full else paper_pb2.PAPER_VIEW_BASIC,
        min_watermark=options.min_watermark,
        exact=options.exact,
        allow_partial=options.allow_partial,
        min_confidence=options.min_confidence,
    )


def query_to_message(query: Query) -> recommender_pb2.Query:
    return recommender_pb2.Query(
        context=query.context, title=query.title, abstract=query.abstract, paper_id=query.paper_id
    )
