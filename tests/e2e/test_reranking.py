"""The default installation: the packaged model reranks the best candidates, joined with the second phase's scores."""

from __future__ import annotations

import pytest

from citewell.recommender.joined_scores import log_odds
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.reranker.v1 import reranker_pb2
from tests.e2e.client import DEADLINE
from tests.e2e.conftest import Running

DEPTH = 20


def _orders(answer: messages.RecommendResponse) -> list[list[str]]:
    """The papers in the order of each stage that scored them."""
    by_stage = {
        stage: sorted((one.rank, item.paper.id) for item in answer.items for one in item.stages if one.stage == stage)
        for stage in ("second_phase", "joined")
    }
    return [[paper for _, paper in by_stage[stage]] for stage in ("second_phase", "joined")]


def _both(running: Running, query: messages.Query) -> tuple[messages.RecommendResponse, messages.RecommendResponse]:
    """The answer with and without reranking, from the same papers and the same word statistics.

    What an earlier test published may still change the statistics between two answers.
    """
    options = messages.Options(top_k=100, candidates=100)
    without = messages.Options(top_k=100, candidates=100, rerank=False)
    for _ in range(10):
        before = running.client.recommend(query, without)
        answer = running.client.recommend(query, options)
        after = running.client.recommend(query, without)
        if before.snapshot == after.snapshot:
            return answer, after
    raise AssertionError("the statistics changed all the time")


def test_the_best_are_reranked_unless_the_caller_wants_otherwise(running: Running) -> None:
    moved = 0
    for asked in running.queries[:5]:
        answer, plain = _both(running, asked.query)
        assert not answer.degraded
        assert answer.snapshot.reranker_hash
        retrieved, reranked = _orders(answer)
        assert [item.paper.id for item in answer.items[:DEPTH]] == reranked
        assert {item.paper.id for item in answer.items[:DEPTH]} == set(retrieved[:DEPTH])
        assert [item.paper.id for item in answer.items[DEPTH:]] == retrieved[DEPTH:], "the rest as retrieved"
        assert [item.paper.id for item in plain.items] == retrieved
        moved += reranked != retrieved[:DEPTH]
    assert moved == 5


def test_a_reranked_item_tells_how_much_its_text_and_its_rank_counted(running: Running) -> None:
    answer = running.client.recommend(running.queries[0].query)
    weight = answer.snapshot.second_phase_weight
    assert weight > 0
    for item in answer.items:
        _, second, rerank, joined = item.stages
        assert (joined.stage, joined.rank, joined.score) == ("joined", item.rank, item.score)
        assert joined.score == pytest.approx(log_odds(rerank.score) + weight * second.score)
        assert item.prior == pytest.approx(0.95**second.rank)
        assert 0 < item.text_gate < 1
        assert 0 < item.prior_gate < 1


def test_a_caller_may_ask_for_another_depth(running: Running) -> None:
    answer = running.client.recommend(running.queries[0].query, messages.Options(top_k=30, rerank_depth=7))
    assert [len(item.stages) for item in answer.items] == [4] * 7 + [2] * 23


def test_info_names_the_model_and_what_its_speed_costs(running: Running) -> None:
    told = running.client.recommender.Info(messages.InfoRequest(), timeout=DEADLINE)
    direct = running.client.reranker.Info(reranker_pb2.InfoRequest(), timeout=DEADLINE)
    assert told.default_rerank_depth == DEPTH
    assert told.reranker.name == "davinci-minilm"
    assert told.reranker.hash == running.client.recommend(running.queries[0].query).snapshot.reranker_hash
    assert told.speed_note == direct.speed_note != ""
