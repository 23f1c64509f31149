"""The profiler as its callers see it: both gRPC services, with a real index behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citewell.index.server import IndexServer
from citewell.index.settings import IndexSettings
from citewell.index.v1 import index_pb2
from citewell.profiler.index_client import IndexClient
from citewell.profiler.ledger.points import PaperPoint
from citewell.profiler.ledger.sums import Model
from citewell.profiler.ledger.views import View
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.settings import ProfilerSettings
from citewell.profiler.v1 import ledger_pb2 as pb
from citewell.profiler.v1 import profile_query_pb2
from citewell.runtime import faults
from citewell.runtime.channels import open_channel
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound
from citewell.scholarly.papers import Paper
from citewell.scholarly.publications import MAX_ABSTRACT, MAX_TITLE
from citewell.types.v1 import paper_pb2, publication_pb2
from tests.profiler_world import call, event, query, running, serving
from tests.servers.in_process import until_serving


async def test_what_is_published_is_found(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        results = await profiler.apply(event("a"), event("b", "a"), event("c", "a", "b"))
        assert {result.outcome for result in results} == {pb.EVENT_OUTCOME_APPLIED}
        for name in "abc":
            await profiler.searchable(f"{name}-1")
        embedded = await call(profiler.queries.EmbedQuery, query(context="in TARGETCIT", title="a net"))
        assert set(await profiler.search(embedded)) == {"a", "b", "c"}
        assert [position.offset for position in embedded.searchable] == [3]
        assert not embedded.context_cut
        scored = await call(
            profiler.queries.ScoreProfiles,
            profile_query_pb2.ScoreProfilesRequest(paper_ids=["a", "zz"], query_vector=embedded.query_vector),
        )
        assert [(one.paper_id, one.in_degree) for one in scored.scores] == [("a", 2)]
        assert list(scored.unknown_ids) == ["zz"]
        found = await call(profiler.queries.GetProfile, profile_query_pb2.GetProfileRequest(paper_id="a"))
        cosine = np.dot(found.profile, embedded.query_vector) / (
            np.linalg.norm(found.profile) * np.linalg.norm(embedded.query_vector)
        )
        assert scored.scores[0].score == pytest.approx(cosine, abs=1e-6)
        long = await call(profiler.queries.EmbedQuery, query(context=f"{'far ' * 90}TARGETCIT{' away' * 90}"))
        assert long.context_cut
    # Everything is still there after a restart.
    async with running(folder, encoder) as profiler:
        again = await call(profiler.queries.EmbedQuery, query(context="in TARGETCIT", title="a net"))
        assert set(await profiler.search(again)) == {"a", "b", "c"}
        assert again.view == embedded.view


async def test_words_are_searched_and_scored_alike(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        await profiler.apply(
            event("a"), event("b", "a"), event("c", "a", "b"), event("d", abstract="forests of parsers")
        )
        for name in "abcd":
            await profiler.searchable(f"{name}-1")
        async with asyncio.timeout(60):  # statistics are computed in the background
            info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
            while info.statistics_papers < 4:
                info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
        embedded = await call(profiler.queries.EmbedQuery, query(context="parsers in TARGETCIT", title="a net"))
        assert embedded.statistics == info.statistics
        assert (embedded.lexical.weight, info.lexical_weight) == (3.0, 3.0)
        assert sum(embedded.lexical.terms.values) == pytest.approx(1)
        found = await call(
            profiler.index.Search,
            index_pb2.SearchRequest(
                field=index_pb2.SEARCH_FIELD_HYBRID,
                vector=embedded.query_vector,
                lexical=embedded.lexical,
                matched_terms=5,
                limit=10,
                index_view=embedded.view,
                model_hash=embedded.model_hash,
            ),
        )
        scored = await call(
            profiler.queries.ScoreProfiles,
            profile_query_pb2.ScoreProfilesRequest(
                paper_ids=[one.paper.id for one in found.papers],
                query_vector=embedded.query_vector,
                lexical=embedded.lexical,
                matched_terms=5,
            ),
        )
        assert len(found.papers) == 4
        assert found.papers[0].paper.id == "d"
        for searched, one in zip(found.papers, scored.scores, strict=True):
            assert one.hybrid_score == pytest.approx(searched.score, abs=1e-5)
            assert one.lexical_score == pytest.approx(searched.lexical_score, abs=1e-5)
            assert one.matched.ids == searched.matched.ids
        early = query(context="parsers in TARGETCIT")
        early.as_of.year = 2020
        before = await call(profiler.queries.EmbedQuery, early)
        assert before.statistics == f"{info.statistics} before 2020"
        assert before.lexical.mean_length == 0  # there is no paper of an earlier year


async def test_loading_ends_as_single_events_do(folder: Path, encoder: Path) -> None:
    events = [event("a"), event("b", "a"), event("a"), event("", "a"), event("a", "b", revision=2)]

    async def batches(size: int) -> AsyncIterator[pb.LoadPublicationsRequest]:
        for at in range(0, len(events), size):
            yield pb.LoadPublicationsRequest(events=events[at : at + size])

    async with running(folder / "loaded", encoder) as profiler:
        answer = await call(profiler.ledger.LoadPublications, batches(2))
        assert (answer.applied, answer.duplicates, answer.superseded) == (3, 1, 0)
        assert [rejected.reason for rejected in answer.rejected] == ["INVALID_PAPER_ID"]
        loaded = await call(profiler.queries.GetProfile, profile_query_pb2.GetProfileRequest(paper_id="a"))
    async with running(folder / "published", encoder) as profiler:
        for offset, one in enumerate(events):
            await profiler.apply(one, start=offset)
        published = await call(profiler.queries.GetProfile, profile_query_pb2.GetProfileRequest(paper_id="a"))
    assert loaded.profile == published.profile
    assert loaded.years == published.years


async def test_vectors_of_the_publisher_are_taken_by_hash(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
        vector = np.full(info.encoder.dimension, 0.25, "<f4")

        def with_vector(paper: str, values: bytes) -> publication_pb2.PublicationEvent:
            text_hash = hashlib.sha256(f"a net of {paper}".encode()).digest()
            told = publication_pb2.TextVector(text_hash=text_hash, model_hash=info.encoder.hash, values=values)
            return event(paper, vectors=[told])

        nan = np.full(info.encoder.dimension, np.nan, "<f4").tobytes()
        good, short, broken = await profiler.apply(
            with_vector("a", vector.tobytes()), with_vector("b", b"1234"), with_vector("c", nan)
        )
        assert good.outcome == pb.EVENT_OUTCOME_APPLIED
        assert {short.reason, broken.reason} == {"INVALID_VECTORS"}
        assert "64 bytes" in short.message
        found = await call(profiler.queries.GetProfile, profile_query_pb2.GetProfileRequest(paper_id="a"))
        assert list(found.content) == vector.tolist()


async def test_references_are_told_as_of_a_date(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        await profiler.apply(event("a"), event("b", "a", "stub"), event("c"))
        now = profile_query_pb2.ListReferencesRequest(paper_ids=["c", "b", "nobody"])
        found = await call(profiler.queries.ListReferences, now)
        assert {paper.paper_id: list(paper.cited_ids) for paper in found.papers} == {"c": [], "b": ["a", "stub"]}
        before = profile_query_pb2.ListReferencesRequest(paper_ids=["b"], as_of=paper_pb2.PartialDate(year=2020))
        assert not (await call(profiler.queries.ListReferences, before)).papers[0].cited_ids
        after = profile_query_pb2.ListReferencesRequest(paper_ids=["b"], as_of=paper_pb2.PartialDate(year=2021))
        assert len((await call(profiler.queries.ListReferences, after)).papers[0].cited_ids) == 2
        many = profile_query_pb2.ListReferencesRequest(paper_ids=[f"p{number}" for number in range(101)])
        with pytest.raises(InvalidField, match="at most 100"):
            await call(profiler.queries.ListReferences, many)


async def test_dead_events_have_a_state(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        (dead,) = await profiler.apply(event("a", revision=0))
        assert (dead.outcome, dead.reason) == (pb.EVENT_OUTCOME_DEAD, "INVALID_REVISION")
        unreadable = pb.EventResult(
            position=publication_pb2.LogPosition(log_id="log", offset=1), reason="UNREADABLE", message="no protobuf"
        )
        await call(profiler.ledger.RecordDeadEvents, pb.RecordDeadEventsRequest(events=[dead, unreadable]))
        for key in ({"event_id": "a-0"}, {"position": unreadable.position}):
            state = await call(profiler.ledger.GetEventState, pb.GetEventStateRequest(**key, wait=True))
            assert (state.outcome, state.searchable) == (pb.EVENT_OUTCOME_DEAD, False)
        unknown = await call(
            profiler.ledger.GetEventState, pb.GetEventStateRequest(event_id="nobody's", wait=True), seconds=3
        )
        assert unknown.outcome == pb.EVENT_OUTCOME_UNSPECIFIED


async def test_queries_do_not_wait_for_events_that_are_stuck(folder: Path, encoder: Path) -> None:
    go_on = threading.Event()
    async with running(folder, encoder) as profiler:
        faults.actions["after-encode"] = lambda: go_on.wait(60) and None
        try:
            # More calls than the default thread pool of the event loop has threads.
            stuck = [asyncio.create_task(profiler.apply(event(f"p{n}"), start=n)) for n in range(64)]
            await asyncio.sleep(0)  # let the calls start
            answer = await call(profiler.queries.EmbedQuery, query(title="a net"), seconds=20)
            assert answer.view
            assert not any(task.done() for task in stuck)
        finally:
            faults.actions.pop("after-encode")
            go_on.set()
            await asyncio.gather(*stuck)


async def test_long_texts_are_written_and_read_in_messages_below_the_limit(folder: Path) -> None:
    """256 papers of the greatest length take 16 MB; a message may have 4 MB."""
    told = IndexSettings(folder=folder / "index", min_free_megabytes=0, max_message_megabytes=4)
    view = View("v", Model("hash", "encoder", 4, "READY"), ProfileWeights(0.5, 0.5), "epoch", True, True, False)
    vector = np.ones(4, np.float32)
    points = [
        PaperPoint(Paper(f"p{n}", title="é" * MAX_TITLE, abstract="漢" * MAX_ABSTRACT), vector, vector, 1, False)
        for n in range(256)
    ]
    async with serving("index", told, IndexServer(told)) as port:
        channel = open_channel(f"localhost:{port}", max_message_megabytes=4)
        await until_serving(channel, "citewell.index.v1.IndexService")
        client = IndexClient(channel, max_message_megabytes=4)
        await client.create_view(view)
        await client.upsert(view, points, [])
        papers, _ = await client.read_points("v", [point.paper.id for point in points], [])
        assert {point.paper for point in papers} == {point.paper for point in points}
        await channel.close()


SECRET_URL = "postgresql://me:top/secret@host/name?password=another"


@pytest.mark.parametrize(
    ("url", "words"), [(SECRET_URL, "psycopg"), (SECRET_URL.replace("postgresql", "oracle"), "oracle")]
)
def test_a_ledger_that_cannot_be_used_is_one_line_without_the_password(tmp_path: Path, url: str, words: str) -> None:
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\")")
    environment = {
        **os.environ,
        "CITEWELL_PROFILER__LEDGER_URL": url,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "citewell.profiler"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("citewell profiler: ledger_url")
    assert words in line
    told = ProfilerSettings(ledger_url=url).model_dump_json()  # what --print-config prints
    for shown in (line, told):
        assert "me:***@host/name" in shown
        assert "secret" not in shown
        assert "another" not in shown


BAD_QUERIES: list[tuple[dict[str, str], str]] = [
    ({}, "context"),
    ({"context": "no marker"}, "context"),
    ({"context": "TARGETCIT and TARGETCIT"}, "context"),
    ({"context": "as in TARGETCIT\u0307"}, "context"),  # NFC joins the accent to the marker
    ({"title": "x" * 3000}, "title"),
    ({"context": "TARGETCIT" + " x" * 20_000}, "context"),
]


async def test_bad_calls_name_the_field(folder: Path, encoder: Path) -> None:
    async with running(folder, encoder) as profiler:
        calls: Sequence[tuple[Any, Any, str]] = [
            *((profiler.queries.EmbedQuery, query(**fields), field) for fields, field in BAD_QUERIES),
            (
                profiler.queries.ScoreProfiles,
                profile_query_pb2.ScoreProfilesRequest(paper_ids=["a"], query_vector=[1.0]),
                "query_vector",
            ),
            (
                profiler.queries.ScoreProfiles,
                profile_query_pb2.ScoreProfilesRequest(paper_ids=["a"], query_vector=[float("nan")] * 16),
                "query_vector",
            ),
            (profiler.ledger.GetEventState, pb.GetEventStateRequest(), "key"),
            (profiler.ledger.GetEventState, pb.GetEventStateRequest(event_id="a\0b"), "key"),  # PostgreSQL has no NUL
            (
                profiler.ledger.StartRebuild,
                pb.StartRebuildRequest(spec=pb.ViewSpec(alpha=float("inf"))),
                "spec.alpha",
            ),
            # Profiles of such a length would be infinite, and the view would never be filled.
            (profiler.ledger.StartRebuild, pb.StartRebuildRequest(spec=pb.ViewSpec(beta=1e300)), "spec.beta"),
            (profiler.ledger.CheckProfiles, pb.CheckProfilesRequest(sample=-1), "sample"),
            (profiler.ledger.CheckProfiles, pb.CheckProfilesRequest(page_size=10_001), "page_size"),
            (profiler.ledger.CheckProfiles, pb.CheckProfilesRequest(page_token="?"), "page_token"),
        ]
        for method, request, field in calls:
            with pytest.raises(InvalidField) as raised:
                await call(method, request)
            assert raised.value.field == field
        with pytest.raises(FailedPrecondition, match="neither a folder nor"):
            await call(profiler.ledger.StartRebuild, pb.StartRebuildRequest(spec=pb.ViewSpec(encoder="not an encoder")))
        with pytest.raises(FailedPrecondition, match="cannot be used: File name too long"):
            await call(profiler.ledger.StartRebuild, pb.StartRebuildRequest(spec=pb.ViewSpec(encoder="a" * 5000)))
        with pytest.raises(NotFound):
            await call(profiler.ledger.SwitchView, pb.SwitchViewRequest(view="nowhere"))
        with pytest.raises(NotFound):
            await call(profiler.queries.GetProfile, profile_query_pb2.GetProfileRequest(paper_id="nobody"))
