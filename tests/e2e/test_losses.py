"""Answers while a service is dead, frozen or slow: as complete as possible, in time, and soon complete again."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.commands.stack import SERVICES
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.e2e.client import Refusal
from tests.e2e.conftest import Running
from tests.e2e.losses import frozen, killed
from tests.servers.processes import wait_until

RERANKER_REASONS = {"RERANKER_UNAVAILABLE", "RERANK_TIMEOUT"}
SLACK = 10.0
"""How much later than its deadline a call may end on a busy machine. What hangs takes longer."""
BY_PROFILES = messages.Options(strategy=messages.STRATEGY_PROFILE, rerank=False, exact=True, top_k=100)
"""Scores by profiles alone. Scores by words also change some seconds after the last publication, when the words'
statistics follow it."""


def _reasons(answer: messages.RecommendResponse) -> set[str]:
    return {each.reason for each in answer.degraded}


def _ranking(running: Running) -> list[tuple[str, float, int]]:
    return _items(running.client.recommend(running.queries[0].query, BY_PROFILES, seconds=60))


def _items(answer: messages.RecommendResponse) -> list[tuple[str, float, int]]:
    return [(item.paper.id, item.score, item.in_degree) for item in answer.items]


def _health(running: Running, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(running.client.channels[service])
    try:
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=2).status)
    except grpc.RpcError:
        return 0


def test_a_lost_reranker_degrades_answers_until_it_is_back(running: Running) -> None:
    query = running.queries[0].query
    whole = _reasons(running.client.recommend(query))
    with killed(running, "reranker"):
        for _ in range(5):
            answer = running.client.recommend(query)
            assert _reasons(answer) & RERANKER_REASONS
            assert len(answer.items) == 10
            assert all(item.evidence for item in answer.items if item.in_degree)
    wait_until(lambda: _reasons(running.client.recommend(query)) == whole, "answers with the reranker")


def test_a_frozen_reranker_leaves_time_for_an_answer(running: Running) -> None:
    query = running.queries[0].query
    running.client.recommend(query)
    with frozen(running, "reranker"):
        answer = running.client.recommend(query, seconds=5.0)  # it comes before the deadline, or this raises
        assert _reasons(answer) & RERANKER_REASONS
        assert answer.items
    wait_until(
        lambda: not _reasons(running.client.recommend(query)) & RERANKER_REASONS, "answers with the reranker again"
    )


@pytest.mark.parametrize("service", ["index", "profiler"])
def test_without_what_every_answer_needs_calls_wait_for_it_until_their_deadline(running: Running, service: str) -> None:
    before = _ranking(running)
    query = running.queries[0].query
    with ThreadPoolExecutor(1) as pool:
        with killed(running, service):
            with pytest.raises(grpc.RpcError) as error:
                running.client.recommend(query, seconds=2)
            assert Refusal.of(error.value).code == "DEADLINE_EXCEEDED"
            assert _health(running, "recommender") == health_pb2.HealthCheckResponse.SERVING, (
                "it can answer and says why not"
            )
            waiting = pool.submit(running.client.recommend, query, seconds=60)
        assert waiting.result().items, "asked before the restart, answered after it"
    assert _ranking(running) == before


@pytest.mark.parametrize("service", ["index", "profiler"])
def test_a_frozen_dependency_ends_in_time(running: Running, service: str) -> None:
    with frozen(running, service):
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as error:
            running.client.recommend(running.queries[0].query, seconds=0.5)
        assert time.monotonic() - started < 0.5 + SLACK
        assert Refusal.of(error.value).code == "DEADLINE_EXCEEDED"
    assert running.client.recommend(running.queries[0].query).items


def test_too_short_a_deadline_is_told_as_such(running: Running) -> None:
    for milliseconds in (1, 5, 20, 60):
        started = time.monotonic()
        request = messages.RecommendRequest(query=running.queries[0].query)
        call = running.client.recommender.Recommend.future(request, timeout=milliseconds / 1000)
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert time.monotonic() - started < milliseconds / 1000 + SLACK


def test_a_restart_of_everything_keeps_every_profile(running: Running) -> None:
    before = _ranking(running)
    running.stack.stop()
    running.stack.start()
    running.stack.wait()
    wait_until(lambda: _health(running, "recommender") == health_pb2.HealthCheckResponse.SERVING, "SERVING")
    assert _ranking(running) == before


def test_an_index_that_lost_its_data_says_so_and_fills_itself_again(running: Running) -> None:
    by_words = messages.Options(rerank=False, exact=True, top_k=100)
    before, told = _ranking(running), set[str]()
    before_by_words = running.client.recommend(running.queries[0].query, by_words)

    def answers_as_before() -> bool:
        try:
            answer = running.client.recommend(running.queries[0].query, BY_PROFILES)
        except grpc.RpcError as error:
            refusal = Refusal.of(error)
            assert refusal.code == "UNAVAILABLE", refusal
            told.add(refusal.reason)
            return False
        if "INDEX_INCOMPLETE" in _reasons(answer):
            told.add("INDEX_INCOMPLETE")
            return False
        # An answer without a partial reason must be complete.
        assert _items(answer) == before
        return True

    running.stack.kill("index")
    shutil.rmtree(running.stack.data / "index")
    running.stack.start(["index"])
    running.stack.wait(["index"])
    wait_until(answers_as_before, "the answers of before", seconds=120)
    assert "INDEX_INCOMPLETE" in told
    after = running.client.recommend(running.queries[0].query, by_words)
    if after.snapshot.statistics == before_by_words.snapshot.statistics:  # otherwise the words weigh differently
        assert _items(after) == _items(before_by_words)


def test_every_service_says_it_serves_by_name(running: Running) -> None:
    names = {
        "recommender": "citewell.recommender.v1.RecommenderService",
        "profiler": "citewell.profiler.v1.LedgerService",
        "index": "citewell.index.v1.IndexService",
        "reranker": "citewell.reranker.v1.RerankerService",
        "ingestion": "citewell.ingestion.v1.IngestionService",
        "edge": "citewell.edge",
    }
    assert names.keys() == SERVICES.keys()
    for service, name in names.items():
        stub = health_pb2_grpc.HealthStub(running.client.channels[service])
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5, wait_for_ready=True)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
