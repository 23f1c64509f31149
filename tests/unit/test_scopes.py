"""Every RPC of the contracts needs exactly one scope, and callers' scopes open only what is meant for callers."""

from __future__ import annotations

from citewell.runtime.scopes import SCOPES, Scope, granted
from tests.security.every_service import every_rpc, path_of

CALLERS = (Scope.RECOMMEND, Scope.PUBLISH)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def test_every_rpc_has_exactly_one_scope() -> None:
    assert set(SCOPES) == {path_of(rpc) for rpc in every_rpc()} | {REFLECTION}


def test_no_scope_of_a_caller_reaches_the_services_or_the_operators_rpcs() -> None:
    reachable = {path for path, scope in SCOPES.items() if scope in granted(CALLERS)}
    assert {path.rpartition("/")[2] for path in reachable} == {
        *("Recommend", "RecommendBatch", "RecommendManuscript", "Explain", "RecordFeedback", "Info"),
        *("Publish", "PublishStream", "GetPublicationStatus"),
    }
    assert all("recommender" in path or "ingestion" in path for path in reachable)
