"""A Python client of citewell, blocking (`Citewell`) and with asyncio (`AsyncCitewell`).

    from citewell.client import Citewell, Options, Query

    with Citewell("127.0.0.1:7300") as citewell:
        answer = citewell.recommend(Query("… as TARGETCIT has shown.", title="My draft"), Options(top_k=3))
        for item in answer.items:
            print(item.rank, item.paper.title, item.score)

Every call has a deadline. Idempotent calls are retried when a service does not answer. Errors
are those of `citewell.runtime.errors`: each says what was wrong and whether a retry can help (`retryable`).
"""

from citewell.client.aio import AsyncCitewell
from citewell.client.connection import Tls
from citewell.client.options import Options
from citewell.client.results import (
    DeadLetter,
    Degradation,
    Evidence,
    Explanation,
    FeedbackPolicy,
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
from citewell.client.sync import Citewell
from citewell.runtime.errors import CitewellError, InvalidField
from citewell.scholarly.outcomes import PublicationState
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.publications import Publication, Retraction
from citewell.scholarly.queries import AsOf, Query, Strategy

__all__ = [
    "AsOf",
    "AsyncCitewell",
    "Citewell",
    "CitewellError",
    "DeadLetter",
    "Degradation",
    "Evidence",
    "Explanation",
    "FeedbackPolicy",
    "InvalidField",
    "Item",
    "LogInfo",
    "MatchedWord",
    "Options",
    "Partition",
    "Publication",
    "PublicationState",
    "PublicationStatus",
    "Query",
    "Receipt",
    "Recommendation",
    "Replayed",
    "Retraction",
    "ScoreParts",
    "SearchFilter",
    "Snapshot",
    "StageScore",
    "Strategy",
    "TextRange",
    "Tls",
]
