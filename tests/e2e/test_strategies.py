"""Every strategy over five services: its order, and the scores and evidence of its items."""

from __future__ import annotations

import pytest

from citewell.index.v1 import index_pb2
from citewell.profiler.v1 import profile_query_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.reranker.v1 import reranker_pb2
from citewell.scholarly.dates import PartialDate, is_before
from citewell.scholarly.spans import spans
from citewell.scholarly.words import words
from tests.e2e.client import DEADLINE
from tests.e2e.conftest import Running, before

HYBRID, PROFILE = messages.STRATEGY_HYBRID, messages.STRATEGY_PROFILE
EVIDENCE, GLOBAL = messages.STRATEGY_EVIDENCE, messages.STRATEGY_GLOBAL
EVERY = (PROFILE, HYBRID, EVIDENCE, GLOBAL)


def ranking(answer: messages.RecommendResponse) -> list[tuple[str, float]]:
    return [(item.paper.id, pytest.approx(item.score, abs=1e-5)) for item in answer.items]


def embedded(running: Running, query: messages.Query) -> profile_query_pb2.EmbedQueryResponse:
    request = profile_query_pb2.EmbedQueryRequest(context=query.context, title=query.title, abstract=query.abstract)
    return running.client.profiles.EmbedQuery(request, timeout=DEADLINE)


@pytest.mark.parametrize(
    ("strategy", "field"), [(PROFILE, index_pb2.SEARCH_FIELD_PROFILE), (HYBRID, index_pb2.SEARCH_FIELD_HYBRID)]
)
def test_retrieval_is_the_search_of_its_field(
    running: Running, strategy: messages.Strategy, field: index_pb2.SearchField
) -> None:
    query = running.queries[0].query
    told = embedded(running, query)
    search = index_pb2.SearchRequest(field=field, vector=told.query_vector, limit=30)
    if strategy == HYBRID:
        search.lexical.CopyFrom(told.lexical)
        search.second_phase.CopyFrom(told.second_phase)
    found = running.client.index.Search(search, timeout=DEADLINE)
    answer = running.client.recommend(query, messages.Options(strategy=strategy, rerank=False, top_k=30))
    scores = [hit.second_phase.score if strategy == HYBRID else hit.score for hit in found.papers]
    assert [(hit.paper.id, score) for hit, score in zip(found.papers, scores, strict=True)] == ranking(answer)
    assert found.second_phase_hash == answer.snapshot.second_phase_hash
    assert answer.snapshot.statistics == told.statistics


def test_an_unset_strategy_is_hybrid_and_finds_more_than_profile_alone(running: Running) -> None:
    right = dict.fromkeys(("unset", "profile"), 0)
    for asked in running.queries:
        options = before(asked.published_before)
        unset = running.client.recommend(asked.query, options)
        options.strategy = PROFILE
        profile = running.client.recommend(asked.query, options)
        options.strategy = HYBRID
        assert ranking(unset) == ranking(running.client.recommend(asked.query, options))
        assert unset.snapshot.statistics
        for name, answer in (("unset", unset), ("profile", profile)):
            right[name] += bool(asked.answers & {item.paper.id for item in answer.items})
    assert right["unset"] > right["profile"]
    info = running.client.recommender.Info(messages.InfoRequest(), timeout=DEADLINE)
    assert info.default_strategy == HYBRID
    assert info.lexical_weight == embedded(running, running.queries[0].query).lexical.weight > 0
    assert info.statistics == running.client.recommend(running.queries[0].query).snapshot.statistics


def test_items_say_which_words_they_share_with_the_query_and_what_those_count(running: Running) -> None:
    seen = 0
    for asked in running.queries[:5]:
        answer = running.client.recommend(asked.query, messages.Options(view=2, rerank=False))
        assert not answer.degraded
        of_query = f"{asked.query.context} {asked.query.title} {asked.query.abstract}"
        for item in answer.items:
            parts = item.parts
            assert parts.content + parts.contexts + parts.citing + parts.words == pytest.approx(1, abs=1e-4)
            said = [text for texts in running.said_of.get(item.paper.id, {}).values() for text in texts]
            own = {word for text in (item.paper.title, item.paper.abstract, *said) for word in words(text)}
            for matched in item.words:
                seen += 1
                assert matched.word in of_query
                assert set(words(matched.word)) <= own
            assert [one.share for one in item.words] == sorted((one.share for one in item.words), reverse=True)
            assert sum(one.share for one in item.words) <= parts.words + 1e-4
            for evidence in item.evidence:
                for match in evidence.matches:
                    shown = evidence.text[match.offset : match.offset + match.length]
                    assert set(words(shown)) & set(words(of_query))
    assert seen


def test_items_of_profile_count_no_words(running: Running) -> None:
    answer = running.client.recommend(running.queries[0].query, messages.Options(strategy=PROFILE, rerank=False))
    assert all(item.parts.words == 0 and not item.words for item in answer.items)
    assert all(
        item.parts.content + item.parts.contexts + item.parts.citing == pytest.approx(1) for item in answer.items
    )


def _supports(running: Running, paper_id: str, span: str) -> int:
    """The number of papers that cite a paper for a span."""
    told = " ".join(span.lower().split())
    return sum(
        any(" ".join(spans(text)[0].of(text).lower().split()) == told for text in texts)
        for texts in running.said_of[paper_id].values()
    )


def test_evidence_cites_what_others_cite_for_such_spans(running: Running) -> None:
    right = 0
    for asked in running.queries[:20]:
        options = messages.Options(strategy=EVIDENCE)
        answer = running.client.recommend(asked.query, options)
        assert not answer.degraded
        assert [item.score for item in answer.items] == sorted((item.score for item in answer.items), reverse=True)
        for item in answer.items:
            (evidence,) = item.evidence
            assert evidence.text in running.said_of[item.paper.id][evidence.citing_id]
            said = evidence.text[evidence.span.offset : evidence.span.offset + evidence.span.length] or evidence.text
            assert evidence.support == _supports(running, item.paper.id, said)
            assert evidence.matches
        right += bool(asked.answers & {item.paper.id for item in answer.items})
    assert right >= 5


def test_global_reads_title_and_abstract_alone(running: Running) -> None:
    query = running.queries[0].query
    draft = messages.Query(title=query.title, abstract=query.abstract)
    options = before(running.queries[0].published_before)
    options.strategy = GLOBAL
    answer = running.client.recommend(query, options)
    assert not answer.degraded
    assert len(answer.items) == 10
    assert ranking(answer) == ranking(running.client.recommend(draft, options))


def test_global_counts_what_the_papers_nearest_to_the_draft_cite(running: Running) -> None:
    draft = next(each for each in reversed(running.publications.values()) if each.passages)
    query = messages.Query(title=draft.title, abstract=draft.abstract)
    told = embedded(running, query)
    search = index_pb2.SearchRequest(field=index_pb2.SEARCH_FIELD_CONTENT, vector=told.query_vector, limit=10)
    nearest = [hit.paper.id for hit in running.client.index.Search(search, timeout=DEADLINE).papers]
    answer = running.client.recommend(query, messages.Options(strategy=GLOBAL, top_k=100))
    cited = 0
    for item in answer.items:
        votes = len(set(nearest) & set(running.said_of.get(item.paper.id, ())))
        parts = item.parts.content + item.parts.contexts + item.parts.citing + item.parts.words
        assert item.score * (1 - parts) == pytest.approx(votes / 10, abs=1e-4)
        cited += bool(votes)
    assert cited


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("as_of", [messages.AS_OF_FILTER, messages.AS_OF_KNOWLEDGE])
def test_nothing_too_new_is_shown_by_any_strategy(
    running: Running, strategy: messages.Strategy, as_of: messages.AsOf
) -> None:
    for asked in running.queries[:3]:
        options = before("2015")
        options.strategy, options.as_of, options.evidence_per_item, options.top_k = strategy, as_of, 20, 50
        answer = running.client.recommend(asked.query, options)
        day = PartialDate.parse("2015")
        assert answer.items
        for item in answer.items:
            assert is_before(running.publications[item.paper.id].published, day)
            assert all(is_before(running.publications[each.citing_id].published, day) for each in item.evidence)
            if as_of == messages.AS_OF_KNOWLEDGE:
                citing = running.said_of.get(item.paper.id, ())
                assert item.in_degree == sum(is_before(running.publications[each].published, day) for each in citing)


@pytest.mark.parametrize("strategy", EVERY)
def test_explain_agrees_with_the_answer(running: Running, strategy: messages.Strategy) -> None:
    query = running.queries[0].query
    options = messages.Options(strategy=strategy, rerank=False, candidates=50)
    answer = running.client.recommend(query, options)
    assert ranking(answer) == ranking(running.client.recommend(query, options))
    for item in answer.items[:3]:
        request = messages.ExplainRequest(query=query, paper_id=item.paper.id, options=options)
        told = running.client.recommender.Explain(request, timeout=DEADLINE).item
        assert (told.rank, told.paper.id, list(told.stages)) == (item.rank, item.paper.id, list(item.stages))
        assert [one.word for one in told.words] == [one.word for one in item.words]


def test_the_reranker_reads_the_evidence_that_items_show(running: Running) -> None:
    read = running.client.reranker.Info(reranker_pb2.InfoRequest(), timeout=DEADLINE).citing_contexts
    for asked in running.queries[:3]:
        query, depth = asked.query, 20
        options = messages.Options(top_k=depth, rerank_depth=depth, evidence_per_item=max(read, 1), view=2)
        answer = running.client.recommend(query, options)
        assert not answer.degraded
        request = reranker_pb2.RerankRequest(context=query.context, title=query.title, abstract=query.abstract)
        for item in sorted(answer.items, key=lambda each: each.stages[1].rank):
            request.candidates.add(
                paper_id=item.paper.id,
                title=item.paper.title,
                abstract=item.paper.abstract,
                rank=item.stages[1].rank,
                score=item.stages[0].score,
                citing_contexts=[each.text for each in item.evidence[:read]],
            )
        scored = running.client.reranker.Rerank(request, timeout=DEADLINE)
        assert {paper.paper_id: pytest.approx(paper.score, abs=2e-2) for paper in scored.papers} == {
            item.paper.id: stage.score for item in answer.items for stage in item.stages if stage.stage == "rerank"
        }
