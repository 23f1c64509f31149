"""The reranker as a process serves it: a small model in process, real channels."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from citewell.reranker import in_process
from citewell.reranker.pairs import TokenBudget
from citewell.reranker.server import RerankerServer
from citewell.reranker.settings import PACKAGED_MODEL, Backend, RerankerSettings
from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime import deadlines
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import DeadlineExceeded, InvalidField, Overloaded
from citewell.runtime.server import ServiceProcess
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.limits import MAX_ABSTRACT, MAX_CANDIDATES, MAX_EVIDENCE, MAX_PASSAGE, MAX_TITLE
from tests.servers.in_process import until_serving
from tests.tiny_models import write_tiny_davinci

SERVICE = "citewell.reranker.v1.RerankerService"
Rerank = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_davinci(tmp_path_factory.mktemp("davinci") / "model")


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Any, RerankerServer]]:
    chosen = RerankerSettings(precision="fp32", threads=1, **settings)
    service = RerankerServer(chosen)
    process = ServiceProcess("reranker", chosen, service)
    task = asyncio.create_task(process.run())
    await asyncio.wait_for(process.bound.wait(), 10)
    channel = open_channel(f"127.0.0.1:{process.port}")
    try:
        await until_serving(channel, SERVICE)
        yield RerankerServiceStub(channel), service
    finally:
        await channel.close()
        process.stop()
        await asyncio.wait_for(task, 20)


def request_of(count: int = 5, **fields: Any) -> messages.RerankRequest:
    candidates = [
        messages.RerankCandidate(
            paper_id=f"p{i}", revision=1, title="a b c" * (i % 3 + 1), abstract="d " * (i % 40), rank=i
        )
        for i in range(1, count + 1)
    ]
    return messages.RerankRequest(**{"context": "see TARGETCIT for it", "candidates": candidates, **fields})


async def ask(stub: Any, request: messages.RerankRequest, seconds: float = 10) -> messages.RerankResponse:
    with deadlines.within(seconds):
        answer: messages.RerankResponse = await invoke(stub.Rerank, request, "rerank")
    return answer


async def test_candidates_are_reranked_and_the_rest_follows(model: Path) -> None:
    async with serving(model=model) as (stub, _):
        answer = await ask(stub, request_of(8, depth=5))
        again = await ask(stub, request_of(8, depth=5))
        info = await stub.Info(messages.InfoRequest(), timeout=5)
    assert (answer.scored, answer.depth, answer.partial_reason) == (5, 5, "")
    assert [paper.rank for paper in answer.papers] == list(range(1, 9))
    scores = [paper.score for paper in answer.papers[:5]]
    assert scores == sorted(scores, reverse=True)
    assert {paper.paper_id for paper in answer.papers[:5]} == {"p1", "p2", "p3", "p4", "p5"}
    assert [paper.paper_id for paper in answer.papers[5:]] == ["p6", "p7", "p8"]
    assert not any(paper.HasField("score") for paper in answer.papers[5:])
    assert all(0 <= paper.text_gate <= 1 for paper in answer.papers[:5])
    assert list(again.papers) == list(answer.papers)
    assert answer.model_hash == info.model.hash
    assert (info.model.name, info.model.dimension, info.model.training_cut_off.year) == ("tiny", 16, 2020)
    assert info.model.runtime == "openvino fp32, fp32 weights"


@pytest.mark.parametrize(
    ("chosen", "name"), [(PACKAGED_MODEL, "davinci-minilm"), ("small", "davinci-minilm-3")], ids=["default", "small"]
)
async def test_the_packaged_models_know_what_fits(chosen: Path | str, name: str) -> None:
    titles = ["Soil bacteria of alpine meadows", "Attention is all you need", "Tax law in the late Middle Ages"]
    candidates = [
        messages.RerankCandidate(paper_id=f"p{rank}", title=title, rank=rank) for rank, title in enumerate(titles, 1)
    ]
    context = "We encode sentences with the attention mechanism of the Transformer TARGETCIT ."
    async with serving(model=chosen) as (stub, _):
        answer = await ask(stub, messages.RerankRequest(context=context, candidates=candidates))
        info = await stub.Info(messages.InfoRequest(), timeout=5)
    assert info.model.name == name
    assert answer.papers[0].paper_id == "p2"


async def test_without_a_model_candidates_keep_their_order_and_the_answer_says_so() -> None:
    async with serving(backend=Backend.NONE) as (stub, _):
        answer = await ask(stub, request_of(4))
        info = await stub.Info(messages.InfoRequest(), timeout=5)
    assert (answer.scored, answer.partial_reason, answer.model_hash) == (0, "NO_MODEL", "")
    assert [paper.paper_id for paper in answer.papers] == ["p1", "p2", "p3", "p4"]
    assert not info.model.name
    assert "keep their order" in info.speed_note


@pytest.mark.parametrize(
    ("change", "field", "told"),
    [
        ({"context": "no marker"}, "context", "text with 0 TARGETCIT"),
        ({"context": "TARGETCIT TARGETCIT"}, "context", "text with 2 TARGETCIT"),
        ({"context": " "}, "context", "a context, a title or an abstract"),
        ({"title": "x" * (MAX_TITLE + 1)}, "title", f"at most {MAX_TITLE}"),
        ({"depth": -1}, "depth", "0 (the default) to"),
        ({"depth": MAX_CANDIDATES + 1}, "depth", f"{MAX_CANDIDATES + 1}"),
        ({"candidates": []}, "candidates", "0 candidates"),
        ({"candidates": [{"title": "a", "rank": 1}]}, "candidates[0].paper_id", "the id of a paper"),
        ({"candidates": [{"paper_id": "a"}]}, "candidates[0].rank", "1-indexed"),
        ({"candidates": [{"paper_id": "a", "rank": 1}] * 2}, "candidates[1].paper_id", "candidates[0] has it too"),
        (
            {"candidates": [{"paper_id": "a", "rank": 1, "abstract": "x" * (MAX_ABSTRACT + 1)}]},
            "candidates[0].abstract",
            "at most",
        ),
        (
            {"candidates": [{"paper_id": "a", "rank": 1, "citing_contexts": ["b", "x" * (MAX_PASSAGE + 1)]}]},
            "candidates[0].citing_contexts[1]",
            f"at most {MAX_PASSAGE}",
        ),
        (
            {"candidates": [{"paper_id": "a", "rank": 1, "citing_contexts": ["b"] * (MAX_EVIDENCE + 1)}]},
            "candidates[0].citing_contexts",
            f"at most {MAX_EVIDENCE}",
        ),
    ],
)
async def test_bad_input_names_the_field(bad_input_stub: Any, change: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await ask(bad_input_stub, request_of(**change))
    assert caught.value.field == field
    assert told in caught.value.message


@pytest.fixture
async def bad_input_stub(model: Path) -> AsyncIterator[Any]:
    async with serving(model=model) as (stub, _):
        yield stub


async def test_overload_is_refused_at_once_and_tells_when_to_come_back(model: Path) -> None:
    async with serving(model=model, waiting_pairs=20, batch_tokens=64) as (stub, _):
        calls = [ask(stub, request_of(20, depth=20, title=f"{i}"), 20) for i in range(12)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Overloaded)]
        served = [answer for answer in answers if isinstance(answer, messages.RerankResponse)]
        assert len(refused) + len(served) == 12
        assert refused
        assert served
        assert all(answer.scored == 20 for answer in served)
        # The queue is empty again: the next one is served.
        assert (await ask(stub, request_of(20, depth=20))).scored == 20


async def test_a_deadline_too_short_fails_or_gives_the_best_so_far(model: Path) -> None:
    async with serving(model=model, batch_tokens=64, waiting_pairs=5000) as (stub, _):
        with pytest.raises(DeadlineExceeded):
            await ask(stub, request_of(500, depth=500), 0.05)
        request = request_of(1000, depth=1000, allow_partial=True)
        await ask(stub, request, 30)  # Compiles what this batch shape needs, so that the next call shows the pace.
        partly = await partly_answered(stub, request)
        # The best so far: those scored are the first by prior, whichever they are.
        scored = {paper.paper_id for paper in partly.papers if paper.HasField("score")}
        assert partly.partial_reason == "DEADLINE"
        assert len(scored) == partly.scored
        assert scored == {f"p{i}" for i in range(1, len(scored) + 1)}


async def partly_answered(stub: Any, request: messages.RerankRequest) -> messages.RerankResponse:
    """An answer in which some papers are scored: looks for a deadline that is neither too short nor long enough."""
    started = time.monotonic()
    await ask(stub, request, 30)
    seconds = (time.monotonic() - started) / 2
    for _ in range(30):  # the pace of a busy machine changes
        try:
            answer = await ask(stub, request, seconds)
        except DeadlineExceeded:
            answer = messages.RerankResponse()
        if 0 < answer.scored < len(request.candidates):
            return answer
        seconds *= 0.7 if answer.scored else 1.3
    raise AssertionError(f"no deadline up to {seconds:.2f} s gave a partial answer")


class _Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that takes every call and answers none, as a Triton does whose GPU is busy."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def never(request: bytes, context: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(never)


async def test_it_starts_while_triton_takes_calls_and_does_not_answer(model: Path) -> None:
    silent = grpc.aio.server()
    silent.add_generic_rpc_handlers((_Silent(),))
    address = f"127.0.0.1:{silent.add_insecure_port('127.0.0.1:0')}"
    await silent.start()
    try:
        triton = {"backend": Backend.TRITON, "triton_timeout_seconds": 0.3, "triton_address": address}
        async with serving(model=model, **triton) as (stub, _):
            answer = await ask(stub, request_of(5, allow_partial=True))
            assert (answer.scored, answer.partial_reason) == (0, "UNAVAILABLE")
    finally:
        await silent.stop(0)


def test_a_first_pass_too_short_for_the_model_names_its_setting(model: Path) -> None:
    settings = {"CITEWELL_RERANKER__MODEL": str(model), "CITEWELL_RERANKER__FIRST_PASS_SHARE": "0.01"}
    ended = subprocess.run(
        [sys.executable, "-m", "citewell.reranker"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **settings},
    )
    assert (ended.returncode, "FIRST_PASS_SHARE is too small" in ended.stderr) == (2, True), ended.stderr


async def test_warming_up_leaves_nothing_that_an_answer_could_show(model: Path) -> None:
    """The warm-up scores candidates of its own; papers that have the ids it once used are read all the same."""
    papers = [messages.RerankCandidate(paper_id=f"{i}", title="a b", abstract="d " * i, rank=i) for i in range(1, 17)]
    renamed = [
        messages.RerankCandidate(paper_id=f"p{i:02}", title="a b", abstract="d " * i, rank=i) for i in range(1, 17)
    ]
    async with serving(model=model) as (stub, _):
        answer = await ask(stub, request_of(candidates=papers))
        expected = await ask(stub, request_of(candidates=renamed))
    assert {int(p.paper_id): p.score for p in answer.papers} == {int(p.paper_id[1:]): p.score for p in expected.papers}


async def test_the_event_loop_stays_free_while_models_are_compiled(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_in: list[threading.Thread] = []
    real = in_process.open_session

    def watched(*arguments: Any) -> Any:
        compiled_in.append(threading.current_thread())
        return real(*arguments)

    monkeypatch.setattr(in_process, "open_session", watched)
    async with serving(model=model):
        pass
    assert len(compiled_in) == 3
    assert threading.main_thread() not in compiled_in


async def test_what_others_said_is_read_where_the_model_reads_it(tmp_path: Path) -> None:
    budget = TokenBudget(context=16, query_title=4, candidate=12, mentions=16, window=64)
    reads = write_tiny_davinci(tmp_path / "reads", budget=budget, mentions=2)
    said = ["the method of TARGETCIT", "we use TARGETCIT here"]
    async with serving(model=reads) as (stub, _):
        plain = await ask(stub, _with_contexts([]))
        heard = await ask(stub, _with_contexts(said))
        # A third context is beyond what the model was trained to read: it must not shorten the others.
        more = await ask(stub, _with_contexts([*said, "as in TARGETCIT"]))
        info = await stub.Info(messages.InfoRequest(), timeout=5)
    assert info.citing_contexts == 2
    assert heard.papers[0].score != plain.papers[0].score
    assert heard.papers == more.papers
    deaf = write_tiny_davinci(tmp_path / "deaf")
    async with serving(model=deaf) as (stub, _):
        assert (await ask(stub, _with_contexts(said))).papers == (await ask(stub, _with_contexts([]))).papers
        assert (await stub.Info(messages.InfoRequest(), timeout=5)).citing_contexts == 0


def _with_contexts(said: list[str]) -> messages.RerankRequest:
    candidate = messages.RerankCandidate(paper_id="p1", title="a", abstract="b", rank=1, citing_contexts=said)
    return request_of(candidates=[candidate])


@pytest.mark.parametrize("damaged", ["davinci.json", "pairs.onnx", "tokenizer.json"])
def test_a_damaged_file_of_a_model_is_named_at_start(model: Path, tmp_path: Path, damaged: str) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / damaged).write_text("5")
    ended = subprocess.run(
        [sys.executable, "-m", "citewell.reranker"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CITEWELL_RERANKER__MODEL": str(folder)},
    )
    said = ended.stderr.splitlines()[-1]
    assert ended.returncode == 2, ended.stderr
    assert f"setting CITEWELL_RERANKER__MODEL: {folder / damaged} cannot be " in said


@pytest.mark.parametrize("missing", ["davinci.json", "sides.onnx"])
def test_an_unusable_model_folder_is_a_clear_setting_error(model: Path, tmp_path: Path, missing: str) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(UnknownSetting, match=f"CITEWELL_RERANKER__MODEL: .* has no {missing}"):
        RerankerServer(RerankerSettings(model=folder))
