"""Scopes: what a caller may do. Every RPC needs exactly one."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Scope(StrEnum):
    """What a client is granted. The first three are for people and their programs, the others for the services."""

    RECOMMEND = "recommend"
    """Ask what to cite."""
    PUBLISH = "publish"
    """Publish papers and retractions, and learn what became of them."""
    OPERATE = "operate"
    """Load, replay, rebuild, repair, and look inside."""
    STATUS = "status"
    """Learn what became of a publication, by its token. Part of `publish` and of `internal.read`."""
    READ = "internal.read"
    """The services' read path: embed, search, score, rerank."""
    WRITE = "internal.write"
    """The services' write path: apply events to the ledger, write to the index."""


INTERNAL = frozenset({Scope.READ, Scope.WRITE})
_INCLUDED = {Scope.PUBLISH: {Scope.STATUS}, Scope.READ: {Scope.STATUS}}

_RPCS: dict[str, dict[Scope, tuple[str, ...]]] = {
    "citewell.recommender.v1.RecommenderService": {
        Scope.RECOMMEND: (
            "Recommend",
            "RecommendBatch",
            "RecommendManuscript",
            "Explain",
            "RecordFeedback",
            "Info",
        ),
    },
    "citewell.ingestion.v1.IngestionService": {
        Scope.PUBLISH: ("Publish", "PublishStream"),
        Scope.STATUS: ("GetPublicationStatus",),
        Scope.OPERATE: ("ListDeadLetters", "RedriveDeadLetters", "Replay", "ListFeedback", "Info"),
        Scope.READ: ("RecordFeedback",),  # what the recommender was told of its answers
    },
    "citewell.profiler.v1.ProfileQueryService": {
        Scope.READ: ("EmbedQuery", "ScoreProfiles", "GetProfile", "ListReferences", "Info"),
    },
    "citewell.profiler.v1.LedgerService": {
        Scope.WRITE: ("ApplyPublications", "GetEventState", "RecordDeadEvents"),
        Scope.OPERATE: (
            "LoadPublications",
            "StartRebuild",
            "GetRebuild",
            "SwitchView",
            "DropView",
            "ListViews",
            "CheckProfiles",
            "AdoptRestoredLedger",
        ),
    },
    "citewell.index.v1.IndexService": {
        Scope.READ: ("Search", "SearchSpans", "SearchEvidence", "GetPapers", "ListPapers", "ReadPoints", "Info"),
        Scope.WRITE: ("Upsert", "CreateView", "ServeView", "DropView"),
        Scope.OPERATE: ("Stats",),
    },
    "citewell.reranker.v1.RerankerService": {Scope.READ: ("Rerank", "Info")},
    "grpc.reflection.v1alpha.ServerReflection": {Scope.OPERATE: ("ServerReflectionInfo",)},
}

SCOPES = {
    f"/{service}/{method}": scope
    for service, scopes in _RPCS.items()
    for scope, methods in scopes.items()
    for method in methods
}
"""The scope of each RPC, by its path."""


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes, and those that are part of them."""
    given = frozenset(scopes)
    return given.union(*(_INCLUDED.get(scope, ()) for scope in given))
