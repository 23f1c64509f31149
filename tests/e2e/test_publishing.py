"""Publications change the answers exactly once, and are visible to a query that asks for their watermark."""

from __future__ import annotations

import uuid
from dataclasses import replace

import grpc
import pytest

from citewell.index.v1 import index_pb2
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.contexts import TARGET, MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.publications import Publication, Retraction
from tests.e2e.client import DEADLINE, Refusal
from tests.e2e.conftest import Running

CONTEXT = f"For knitting with quantum needles the loop calculus of {TARGET} is still the standard reference."


def _citing(cited: str, revision: int = 1) -> Publication:
    return Publication(
        paper_id=f"new-{uuid.uuid4()}",
        revision=revision,
        title="Knitting with quantum needles",
        abstract="We knit.",
        published=PartialDate(2025, 7, 1),
        masked_contexts=(MaskedContext(CONTEXT, cited),),
    )


def _ask(running: Running, *tokens: str) -> messages.RecommendResponse:
    query = messages.Query(context=f"A loop calculus {TARGET} for quantum needles and knitting is used.")
    return running.client.recommend(query, messages.Options(rerank=False, top_k=100, min_watermark=tokens))


def _rank(answer: messages.RecommendResponse, paper_id: str) -> int:
    return next((item.rank for item in answer.items if item.paper.id == paper_id), 1000)


def test_a_publication_changes_the_answer_as_soon_as_its_watermark_is_asked_for(running: Running) -> None:
    before = _ask(running)
    cited = before.items[-1].paper.id
    citing = _citing(cited)
    accepted = running.client.publish(citing)
    after = _ask(running, accepted.token)
    assert _rank(after, cited) < _rank(before, cited)
    item = next(item for item in after.items if item.paper.id == cited)
    assert item.in_degree == before.items[-1].in_degree + 1
    assert (item.evidence[0].citing_id, item.evidence[0].text) == (citing.paper_id, CONTEXT)
    searchable = {(at.log_id, at.partition): at.offset for at in after.snapshot.searchable}
    assert searchable[accepted.position.log_id, accepted.position.partition] > accepted.position.offset

    status = running.client.settled(accepted.token)
    assert (status.state, status.outcome) == (ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, "APPLIED")

    again = running.client.settled(running.client.publish(citing).token)
    assert again.outcome == "DUPLICATE"
    repeated = _ask(running)
    assert next(item for item in repeated.items if item.paper.id == cited).in_degree == item.in_degree

    retracted = running.client.publish(Retraction(citing.paper_id, 2))
    undone = _ask(running, retracted.token)
    assert [(item.paper.id, item.in_degree) for item in undone.items] == [
        (item.paper.id, item.in_degree) for item in before.items
    ]
    assert all(span.citing_id != citing.paper_id for item in undone.items for span in item.evidence)


def test_an_older_revision_changes_nothing(running: Running) -> None:
    newer = replace(_citing("nobody-yet"), revision=5)
    running.client.settled(running.client.publish(newer).token)
    older = replace(newer, revision=4, title="An older title")
    assert running.client.settled(running.client.publish(older).token).outcome == "SUPERSEDED"
    got = running.client.index.GetPapers(index_pb2.GetPapersRequest(ids=[newer.paper_id]), timeout=DEADLINE)
    assert [(paper.title, paper.revision) for paper in got.papers] == [(newer.title, 5)]


def test_the_same_revision_with_other_content_becomes_a_dead_letter(running: Running) -> None:
    first = _citing("nobody-yet")
    running.client.settled(running.client.publish(first).token)
    clash = running.client.publish(replace(first, title="Something else"))
    status = running.client.settled(clash.token)
    assert status.state == ingestion_pb2.PUBLICATION_STATE_DEAD
    letters = running.client.ingestion.ListDeadLetters(ingestion_pb2.ListDeadLettersRequest(), timeout=DEADLINE)
    assert clash.event_id in {letter.event_id for letter in letters.dead_letters}
    with pytest.raises(grpc.RpcError) as error:
        _ask(running, clash.token)
    assert (Refusal.of(error.value).code, Refusal.of(error.value).reason) == ("FAILED_PRECONDITION", "EVENT_DEAD")


def test_a_paper_cited_before_it_is_published_is_no_answer_until_then(running: Running) -> None:
    late = Publication(f"late-{uuid.uuid4()}", 1, "Loop calculus", "Quantum needles and their loops.")
    cited = running.client.publish(_citing(late.paper_id))
    assert _rank(_ask(running, cited.token), late.paper_id) == 1000
    answer = _ask(running, running.client.publish(late).token)
    assert _rank(answer, late.paper_id) == 1
    assert answer.items[0].in_degree == 1
    assert answer.items[0].evidence[0].text == CONTEXT


def test_a_repeated_request_id_is_one_event(running: Running) -> None:
    request_id = str(uuid.uuid4())
    publication = _citing("nobody-yet")
    first = running.client.publish(publication, request_id)
    assert running.client.publish(publication, request_id).event_id == first.event_id
