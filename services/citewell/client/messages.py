"""Converts the services' answers to the client's results."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from citewell.client.results import (
    DeadLetter,
    Degradation,
    Evidence,
    Explanation,
    Item,
    LogInfo,
    MatchedWord,
    Partition,
    PublicationStatus,
    Receipt,
    Recommendation,
    Replayed,
    ScoreParts,
    Snapshot,
    StageScore,
    TextRange,
)
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2
from citewell.types.messages import date_from_message, paper_from_message, position_from_message
from citewell.types.outcome_messages import state_from_message


def recommendation_from_message(message: recommender_pb2.RecommendResponse) -> Recommendation:
    return Recommendation(
        items=tuple(map(item_from_message, message.items)),
        snapshot=_snapshot(message.snapshot),
        degraded=_degraded(message.degraded),
        timings={one.stage: one.seconds for one in message.timings},
        as_of_note=message.as_of_note,
        message=message,
    )


def explanation_from_message(message: recommender_pb2.ExplainResponse) -> Explanation:
    return Explanation(
        item=item_from_message(message.item),
        content_share=message.content_share,
        context_share=message.context_share,
        citing_share=message.citing_share,
        degraded=_degraded(message.degraded),
        message=message,
    )


def item_from_message(message: recommender_pb2.Item) -> Item:
    parts = message.parts
    return Item(
        rank=message.rank,
        paper=paper_from_message(message.paper),
        score=message.score,
        stages=tuple(StageScore(one.stage, one.rank, one.score) for one in message.stages),
        prior=message.prior,
        in_degree=message.in_degree,
        text_gate=message.text_gate if message.HasField("text_gate") else None,
        prior_gate=message.prior_gate if message.HasField("prior_gate") else None,
        confidence=message.confidence if message.HasField("confidence") else None,
        evidence=tuple(map(_evidence, message.evidence)),
        parts=ScoreParts(parts.content, parts.contexts, parts.citing, parts.words)
        if message.HasField("parts")
        else None,
        words=tuple(MatchedWord(one.word, one.share) for one in message.words),
        contributions={one.name: one.value for one in message.contributions},
    )


def receipt_from_message(message: ingestion_pb2.PublishResponse) -> Receipt:
    return Receipt(message.event_id, position_from_message(message.position), message.token)


def status_from_message(message: ingestion_pb2.GetPublicationStatusResponse) -> PublicationStatus:
    return PublicationStatus(state_from_message(message.state), message.outcome, message.message)


def dead_letter_from_message(message: ingestion_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=message.id,
        position=position_from_message(message.position),
        event_id=message.event_id,
        paper_id=message.paper_id,
        reason=message.reason,
        message=message.message,
        recorded=message.recorded.ToDatetime(tzinfo=UTC),
        redrive_of=message.redrive_of,
    )


def log_from_message(message: ingestion_pb2.InfoResponse) -> LogInfo:
    return LogInfo(
        id=message.log_id,
        kind=message.log_kind,
        partitions=tuple(
            Partition(one.partition, one.first_offset, one.end_offset, one.committed_offset)
            for one in message.partitions
        ),
        dead_letters=message.dead_letters,
    )


def replayed_from_message(message: ingestion_pb2.ReplayResponse) -> Replayed:
    return Replayed(
        message.delivered, message.applied, message.duplicates, message.superseded, message.dead, message.remaining
    )


def _evidence(message: recommender_pb2.EvidenceSpan) -> Evidence:
    return Evidence(
        citing_id=message.citing_id,
        text=message.text,
        published=date_from_message(message.published, "published"),
        score=message.score,
        matches=tuple(TextRange(one.offset, one.length) for one in message.matches),
        span=TextRange(message.span.offset, message.span.length) if message.HasField("span") else None,
        support=message.support,
    )


def _degraded(messages: Iterable[recommender_pb2.Degradation]) -> tuple[Degradation, ...]:
    return tuple(Degradation(one.reason, one.message) for one in messages)


def _snapshot(message: recommender_pb2.Snapshot) -> Snapshot:
    return Snapshot(
        searchable=tuple(map(position_from_message, message.searchable)),
        encoder_hash=message.encoder_hash,
        reranker_hash=message.reranker_hash,
        settings_hash=message.settings_hash,
        index_view=message.index_view,
        exact=message.exact,
        statistics=message.statistics,
        second_phase_hash=message.second_phase_hash,
        second_phase_weight=message.second_phase_weight,
    )
