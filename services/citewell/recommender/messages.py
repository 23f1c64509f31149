"""The recommender's messages to domain objects and back."""

from __future__ import annotations

from dataclasses import replace

from citewell.recommender.answers import Answer, Degradation, Item, Parts, ShownEvidence
from citewell.recommender.queries import (
    DEFAULT_CANDIDATES,
    DEFAULT_STRATEGY,
    DEFAULT_TOP_K,
    Options,
)
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.errors import InvalidField
from citewell.scholarly.limits import MAX_EXCLUDED
from citewell.scholarly.queries import AsOf, Strategy
from citewell.scholarly.spans import Span
from citewell.types.messages import date_to_message, filter_from_message, paper_to_message, position_to_message
from citewell.types.v1 import paper_pb2

_STRATEGIES = {
    messages.STRATEGY_UNSPECIFIED: DEFAULT_STRATEGY,
    messages.STRATEGY_PROFILE: Strategy.PROFILE,
    messages.STRATEGY_HYBRID: Strategy.HYBRID,
    messages.STRATEGY_EVIDENCE: Strategy.EVIDENCE,
    messages.STRATEGY_GLOBAL: Strategy.GLOBAL,
}
_AS_OF = {
    messages.AS_OF_UNSPECIFIED: AsOf.FILTER,
    messages.AS_OF_FILTER: AsOf.FILTER,
    messages.AS_OF_KNOWLEDGE: AsOf.KNOWLEDGE,
}
_VIEWS = (paper_pb2.PAPER_VIEW_UNSPECIFIED, paper_pb2.PAPER_VIEW_BASIC, paper_pb2.PAPER_VIEW_FULL)


def options_from_message(message: messages.Options, default_depth: int) -> Options:
    """The options with their defaults, not yet validated, or InvalidField for an enum value unknown here."""
    if message.strategy not in _STRATEGIES:
        raise InvalidField("options.strategy", message.strategy, "a known strategy")
    if message.as_of not in _AS_OF:
        raise InvalidField("options.as_of", message.as_of, "AS_OF_FILTER or AS_OF_KNOWLEDGE")
    if message.view not in _VIEWS:
        raise InvalidField("options.view", message.view, "PAPER_VIEW_BASIC or PAPER_VIEW_FULL")
    options = Options(
        top_k=message.top_k or DEFAULT_TOP_K,
        candidates=message.candidates or DEFAULT_CANDIDATES,
        filter=filter_from_message(message.filter, "options.filter", most_excluded=MAX_EXCLUDED),
        as_of=_AS_OF[message.as_of],
        strategy=_STRATEGIES[message.strategy],
        rerank_depth=message.rerank_depth or default_depth,
        diversity=message.diversity,
        full=message.view == paper_pb2.PAPER_VIEW_FULL,
        min_watermark=tuple(message.min_watermark),
        exact=message.exact,
        allow_partial=message.allow_partial,
        min_confidence=message.min_confidence,
    )
    if message.HasField("evidence_per_item"):
        options = replace(options, evidence_per_item=message.evidence_per_item)
    if message.HasField("rerank"):
        options = replace(options, rerank=message.rerank)
    return options


def answer_to_message(answer: Answer, *, full: bool) -> messages.RecommendResponse:
    snapshot = answer.snapshot
    return messages.RecommendResponse(
        items=[item_to_message(item, full=full) for item in answer.items],
        snapshot=messages.Snapshot(
            searchable=map(position_to_message, snapshot.searchable),
            encoder_hash=snapshot.encoder_hash,
            reranker_hash=snapshot.reranker_hash,
            settings_hash=snapshot.settings_hash,
            index_view=snapshot.index_view,
            exact=snapshot.exact,
            statistics=snapshot.statistics,
            second_phase_hash=snapshot.second_phase_hash,
            second_phase_weight=snapshot.second_phase_weight,
        ),
        degraded=map(degradation_to_message, answer.degraded),
        timings=[messages.StageTiming(stage=stage, seconds=seconds) for stage, seconds in answer.timings],
        as_of_note=answer.as_of_note,
    )


def item_to_message(item: Item, *, full: bool) -> messages.Item:
    parts = item.parts
    return messages.Item(
        rank=item.rank,
        paper=paper_to_message(item.paper, full=full),
        score=item.score,
        stages=[messages.StageScore(stage=one.stage, rank=one.rank, score=one.score) for one in item.stages],
        prior=item.prior,
        text_gate=item.text_gate,
        prior_gate=item.prior_gate,
        evidence=map(_evidence_to_message, item.evidence),
        in_degree=item.paper.in_degree,
        confidence=item.confidence,
        parts=None if parts is None else _parts_to_message(parts),
        words=[messages.MatchedWord(word=one.word, share=one.share) for one in item.words],
        contributions=[messages.Contribution(name=name, value=value) for name, value in item.contributions],
    )


def _parts_to_message(parts: Parts) -> messages.ScoreParts:
    return messages.ScoreParts(content=parts.content, contexts=parts.contexts, citing=parts.citing, words=parts.words)


def _evidence_to_message(shown: ShownEvidence) -> messages.EvidenceSpan:
    evidence = shown.evidence
    message = messages.EvidenceSpan(
        citing_id=evidence.citing_id,
        text=evidence.text,
        published=date_to_message(evidence.published),
        score=evidence.score,
        matches=map(_range_to_message, shown.matches),
        support=evidence.support,
    )
    if evidence.span.length:
        message.span.CopyFrom(_range_to_message(evidence.span))
    return message


def _range_to_message(span: Span) -> messages.TextRange:
    return messages.TextRange(offset=span.offset, length=span.length)


def degradation_to_message(degradation: Degradation) -> messages.Degradation:
    return messages.Degradation(reason=degradation.reason, message=degradation.message)
