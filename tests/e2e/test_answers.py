"""Answers as callers get them: their evidence, their filters, and that rankings are reproducible."""

from __future__ import annotations

import pytest

from citewell.index.v1 import index_pb2
from citewell.profiler.v1 import profile_query_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.dates import PartialDate, is_before
from citewell.types.messages import date_from_message
from citewell.types.v1 import paper_pb2
from tests.e2e.client import DEADLINE
from tests.e2e.conftest import PAPERS, Running, before


def _ids(answer: messages.RecommendResponse) -> list[str]:
    return [item.paper.id for item in answer.items]


def test_every_item_says_why(running: Running) -> None:
    answer = running.client.recommend(running.queries[0].query)
    assert len(answer.items) == 10
    for place, item in enumerate(answer.items, 1):
        assert item.rank == place
        assert [one.stage for one in item.stages[:2]] == ["retrieval", "second_phase"]
        second = item.stages[1]
        assert item.prior == pytest.approx(0.95**second.rank)
        assert sum(one.value for one in item.contributions) == pytest.approx(second.score)
        assert item.score == item.stages[-1].score
        assert item.paper.title == running.publications[item.paper.id].title
        assert not item.paper.abstract  # the BASIC view has no abstracts
        said = running.said_of.get(item.paper.id, {})
        assert item.in_degree == len(said)
        assert bool(item.evidence) == bool(said)
        assert all(span.text in said[span.citing_id] for span in item.evidence)
    assert answer.snapshot.encoder_hash
    assert (
        answer.snapshot.second_phase_hash == running.client.index.Info(index_pb2.InfoRequest()).second_phase_hash != ""
    )
    assert answer.snapshot.searchable
    stages = {timing.stage: timing.seconds for timing in answer.timings}
    assert {"embed", "search", "evidence", "total"} <= stages.keys()
    assert stages["total"] >= stages["search"]


def test_profiles_find_more_of_what_is_cited_than_contents_do(running: Running) -> None:
    by_profile = by_content = 0
    for asked in running.queries:
        options = before(asked.published_before)
        by_profile += bool(asked.answers & set(_ids(running.client.recommend(asked.query, options))))
        query = profile_query_pb2.EmbedQueryRequest(
            context=asked.query.context, title=asked.query.title, abstract=asked.query.abstract
        )
        vector = running.client.profiles.EmbedQuery(query, timeout=DEADLINE).query_vector
        search = index_pb2.SearchRequest(
            field=index_pb2.SEARCH_FIELD_CONTENT, vector=vector, limit=10, filter=options.filter
        )
        found = running.client.index.Search(search, timeout=DEADLINE).papers
        by_content += bool(asked.answers & {each.paper.id for each in found})
    assert by_profile > by_content
    assert by_profile > 0.35 * len(running.queries)


@pytest.mark.parametrize("as_of", [messages.AS_OF_FILTER, messages.AS_OF_KNOWLEDGE])
def test_nothing_from_the_day_asked_for_or_later_is_shown(running: Running, as_of: messages.AsOf) -> None:
    for asked in running.queries[:10]:
        for boundary in (asked.published_before, "2012", "2018-03"):
            options = before(boundary)
            options.as_of, options.evidence_per_item, options.top_k = as_of, 20, 50
            answer = running.client.recommend(asked.query, options)
            assert answer.items
            assert boundary in answer.as_of_note
            day = PartialDate.parse(boundary)
            for item in answer.items:
                assert is_before(running.publications[item.paper.id].published, day)
                for span in item.evidence:
                    assert is_before(running.publications[span.citing_id].published, day)
                if as_of == messages.AS_OF_KNOWLEDGE:
                    citing = running.said_of.get(item.paper.id, ())
                    assert item.in_degree == sum(
                        is_before(running.publications[paper_id].published, day) for paper_id in citing
                    )


def test_filters_hold(running: Running) -> None:
    asked = running.queries[0]
    unfiltered = running.client.recommend(asked.query, messages.Options(rerank=False))
    first = unfiltered.items[0].paper
    options = messages.Options(rerank=False, top_k=50)
    options.filter.excluded_ids.append(first.id)
    assert first.id not in _ids(running.client.recommend(asked.query, options))
    options = messages.Options(rerank=False, top_k=50)
    options.filter.venues.append(first.venue)
    options.filter.year_from, options.filter.year_to = first.published.year, first.published.year
    answer = running.client.recommend(asked.query, options)
    assert first.id in _ids(answer)
    assert {(item.paper.venue, item.paper.published.year) for item in answer.items} == {
        (first.venue, first.published.year)
    }


def test_a_draft_with_an_id_may_exclude_as_many_papers_as_any_other(running: Running) -> None:
    query = messages.Query()
    query.CopyFrom(running.queries[0].query)
    query.paper_id = "the draft"
    options = messages.Options(rerank=False)
    options.filter.excluded_ids.extend(f"excluded {number}" for number in range(10_000))
    assert running.client.recommend(query, options).items


def test_a_published_draft_is_neither_item_nor_evidence(running: Running) -> None:
    draft = next(each for each in running.publications.values() if each.passages)
    query = messages.Query(title=draft.title, abstract=draft.abstract, paper_id=draft.paper_id)
    answer = running.client.recommend(query, messages.Options(top_k=50, evidence_per_item=20, rerank=False))
    assert draft.paper_id not in _ids(answer)
    assert all(span.citing_id != draft.paper_id for item in answer.items for span in item.evidence)
    anonymous = messages.Query(title=draft.title, abstract=draft.abstract)
    assert draft.paper_id in _ids(running.client.recommend(anonymous, messages.Options(rerank=False)))


def test_the_same_request_gets_the_same_ranking(running: Running) -> None:
    request = messages.RecommendRequest(
        query=running.queries[0].query, options=messages.Options(exact=True, rerank=False, top_k=100)
    )
    first = running.client.recommender.Recommend(request, timeout=DEADLINE)
    for _ in range(100):
        again = running.client.recommender.Recommend(request, timeout=DEADLINE)
        assert [(item.paper.id, item.score) for item in again.items] == [
            (item.paper.id, item.score) for item in first.items
        ]
    scores = [(-item.score, item.paper.id) for item in first.items]
    assert scores == sorted(scores)


def test_one_wrong_query_of_a_batch_fails_alone(running: Running) -> None:
    good = messages.RecommendRequest(query=running.queries[0].query, options=messages.Options(top_k=3))
    bad = messages.RecommendRequest(query=messages.Query(context="no marker"))
    answer = running.client.recommender.RecommendBatch(
        messages.RecommendBatchRequest(requests=[good, bad, good]), timeout=DEADLINE
    )
    first, wrong, last = answer.results
    assert _ids(first.response) == _ids(last.response) == _ids(running.client.recommend(good.query, good.options))
    assert (wrong.error.code, wrong.error.reason, wrong.error.field) == (3, "MARKER_COUNT", "query.context")


def test_diversity_keeps_the_best_and_changes_the_rest(running: Running) -> None:
    query = running.queries[0].query
    plain = _ids(running.client.recommend(query, messages.Options(rerank=False)))
    diverse = _ids(running.client.recommend(query, messages.Options(rerank=False, diversity=0.7)))
    assert diverse[0] == plain[0]
    assert diverse != plain


def test_explain_tells_of_a_paper_below_the_answers(running: Running) -> None:
    query = running.queries[0].query
    options = messages.Options(top_k=100, candidates=100, rerank=False)
    last = running.client.recommend(query, options).items[-1]
    request = messages.ExplainRequest(
        query=query, paper_id=last.paper.id, options=messages.Options(top_k=1, candidates=100, rerank=False)
    )
    explained = running.client.recommender.Explain(request, timeout=DEADLINE)
    assert (explained.item.rank, explained.item.paper.id) == (100, last.paper.id)
    assert explained.item.stages == last.stages
    for item in running.client.recommend(query, options).items[:20]:
        request = messages.ExplainRequest(query=query, paper_id=item.paper.id, options=options)
        told = running.client.recommender.Explain(request, timeout=DEADLINE)
        assert told.item.rank == item.rank
        assert told.content_share + told.context_share + told.citing_share == pytest.approx(1, abs=1e-4)
        assert (told.context_share != 0) == (told.citing_share != 0) == (item.in_degree > 0)


def test_info_names_models_and_limits(running: Running) -> None:
    info = running.client.recommender.Info(messages.InfoRequest(), timeout=DEADLINE)
    assert info.encoder.hash
    assert info.encoder.dimension == 384
    every = [messages.STRATEGY_PROFILE, messages.STRATEGY_HYBRID, messages.STRATEGY_EVIDENCE, messages.STRATEGY_GLOBAL]
    assert list(info.strategies) == every
    assert (info.default_top_k, info.default_candidates, info.default_rerank_depth) == (10, 300, 20)
    assert info.as_of_limits


def test_papers_are_found_by_id_and_listed_page_by_page(running: Running) -> None:
    known = list(running.publications)[:2]
    got = running.client.index.GetPapers(
        index_pb2.GetPapersRequest(ids=[*known, "nobody"], view=paper_pb2.PAPER_VIEW_FULL), timeout=DEADLINE
    )
    assert [paper.id for paper in got.papers] == known
    assert list(got.missing_ids) == ["nobody"]
    assert got.papers[0].abstract == running.publications[known[0]].abstract
    assert date_from_message(got.papers[0].published, "") == running.publications[known[0]].published

    listed, token = [], ""
    while True:
        page = running.client.index.ListPapers(
            index_pb2.ListPapersRequest(page_size=150, page_token=token), timeout=DEADLINE
        )
        listed += [paper.id for paper in page.papers]
        token = page.next_page_token
        if not token:
            break
    world = [each for each in listed if each in running.publications]
    assert sorted(world) == sorted(running.publications)
    stats = running.client.index.Stats(index_pb2.StatsRequest(), timeout=DEADLINE)
    assert stats.papers >= PAPERS


def test_asked_contexts_are_held_out(running: Running) -> None:
    """Checks the test data: there are enough queries, and their contexts were not published."""
    assert len(running.queries) >= 20
    known = {text for said in running.said_of.values() for texts in said.values() for text in texts}
    assert all(asked.query.context not in known for asked in running.queries)
