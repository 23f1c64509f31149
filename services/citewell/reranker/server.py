"""The reranker's gRPC handlers: messages in, domain, messages out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from opentelemetry.metrics import CallbackOptions, Observation

from citewell import __version__
from citewell.inference.sessions import GraphUnusable
from citewell.reranker.batching import BatchReport, PairQueue, QueueLimits
from citewell.reranker.model_files import TOKENIZER, ModelFolder, RerankerUnusable, read_model_folder
from citewell.reranker.pairs import CandidateText, PairTokenizer, TokenBudget
from citewell.reranker.rerank import Candidate, CandidateTokens, Pass, Reranker, Reranking, shortened, unscored
from citewell.reranker.scorer import PairScorer
from citewell.reranker.scores import RankedPaper
from citewell.reranker.settings import PACKAGED_MODEL, Backend, RerankerSettings
from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceServicer, add_RerankerServiceServicer_to_server
from citewell.runtime import deadlines, telemetry
from citewell.runtime.errors import InvalidField, Overloaded, Unavailable
from citewell.runtime.health import Check
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.contexts import TARGET
from citewell.scholarly.limits import MAX_ABSTRACT, MAX_CANDIDATES, MAX_EVIDENCE, MAX_PASSAGE, MAX_TITLE
from citewell.scholarly.queries import Query
from citewell.types.messages import query_from_message
from citewell.types.v1 import paper_pb2

PRIOR_DECAY = 0.95
# Share of the time left that is kept for sending a partial answer before the caller's deadline.
PARTIAL_RESERVE = 0.1
_WARM_PAIRS = 16

_pairs = telemetry.meter.create_counter("citewell_reranker_pairs", description="Pairs scored")
_tokens = telemetry.meter.create_counter("citewell_reranker_tokens", description="Tokens scored, without padding")
_shed = telemetry.meter.create_counter("citewell_reranker_shed", description="Requests refused because of the queue")
_fill = telemetry.meter.create_histogram(
    "citewell_reranker_batch_fill", description="Share of a batch that is no padding"
)
_batch_seconds = telemetry.meter.create_histogram("citewell_reranker_batch.duration", unit="s")
_batch_requests = telemetry.meter.create_histogram(
    "citewell_reranker_batch_requests", description="Requests in a batch"
)


class RerankerServer(RerankerServiceServicer):
    """Serves RerankerService."""

    grpc_services = ("citewell.reranker.v1.RerankerService",)

    def __init__(self, settings: RerankerSettings) -> None:
        self._settings = settings
        self._model = _model(settings)
        self._scorer: PairScorer | None = None
        self._reranker: Reranker | None = None

    def register(self, server: grpc.aio.Server) -> None:
        add_RerankerServiceServicer_to_server(self, server)

    async def start(self) -> None:
        """Loads the model and scores a few pairs; a Triton that is not there yet is for check()."""
        if self._model is None:
            return
        settings = self._settings
        # Compiling graphs and reading the tokeniser take seconds: probes are answered meanwhile.
        self._scorer = scorer = await _open_scorer(self._model, settings)
        passes = await asyncio.to_thread(_passes, self._model, settings)
        limits = QueueLimits(settings.batch_tokens, settings.waiting_pairs, settings.batches_in_flight)
        self._queue = PairQueue(scorer, passes[-1].tokenizer.pack, limits, time.monotonic, _record)
        telemetry.meter.create_observable_gauge("citewell_reranker_waiting_pairs", callbacks=[self._waiting])
        _shed.add(0)  # a rate needs a value from before the first increase
        self._queue.start()
        self._reranker = Reranker(self._queue, passes, self._model.description.decay, time.monotonic)
        await self._warm()

    async def _warm(self) -> None:
        """Two rounds: the first loads what the runtime loads lazily, the second tells the queue its speed."""
        assert self._reranker is not None
        assert self._model is not None
        text = "warm up " * 200
        said = (f"{text} {TARGET} {text}",) * self._model.description.mentions
        candidates = [Candidate(f"{i}", i, CandidateText(text, text, said)) for i in range(1, _WARM_PAIRS + 1)]
        for _ in range(2):
            query = Query(f"{text} {TARGET} {text}", text, text)
            await self._reranker.rerank(query, candidates, _WARM_PAIRS, deadlines.remaining(), allow_partial=True)

    @property
    def _citing_contexts(self) -> int:
        """How many citing contexts of a candidate the model reads."""
        if self._model is None or not self._model.description.budget.mentions:
            return 0
        return self._model.description.mentions

    async def check(self) -> None:
        """A started reranker can always answer: without its model candidates keep their order."""

    def dependencies(self) -> Mapping[str, Check]:
        return {"model": self._scorer.check} if self._scorer is not None else {}

    async def stop(self) -> None:
        if self._reranker is not None:
            await self._queue.stop()
        if self._scorer is not None:
            await self._scorer.close()

    def _waiting(self, options: CallbackOptions) -> Sequence[Observation]:
        return [Observation(self._queue.waiting_pairs)]

    async def Rerank(self, request: messages.RerankRequest, context: Any) -> messages.RerankResponse:
        query, candidates = query_from_message(request), _candidates(request, self._citing_contexts)
        depth = _depth(request.depth) or self._settings.default_depth
        if self._model is not None and self._reranker is None:
            raise Unavailable("the reranker is starting", stage="rerank")
        if self._reranker is None or self._scorer is None:
            return _response(unscored(candidates, depth, PRIOR_DECAY), "")
        left = deadlines.remaining() - deadlines.MARGIN_SECONDS
        if request.allow_partial:
            left *= 1 - PARTIAL_RESERVE
        try:
            done = await self._reranker.rerank(query, candidates, depth, left, allow_partial=request.allow_partial)
        except Overloaded:
            _shed.add(1)
            raise
        return _response(done, self._scorer.info.hash)

    async def Info(self, request: messages.InfoRequest, context: Any) -> messages.InfoResponse:
        settings = self._settings
        info = messages.InfoResponse(
            version=__version__, default_depth=settings.default_depth, prior_decay=PRIOR_DECAY, speed_note="one pass"
        )
        if self._scorer is None or self._model is None:
            info.speed_note = "no model: candidates keep their order"
            return info
        described = self._model.description
        year, month, day = described.training_cut_off
        info.prior_decay = described.decay
        info.citing_contexts = self._citing_contexts
        info.speed_note = f"one pass over pairs of at most {described.budget.longest} tokens"
        if settings.first_pass_share < 1:
            info.speed_note = (
                f"two passes: texts cut to {settings.first_pass_share:.0%} for all candidates, "
                f"whole ones for the best {settings.second_pass}"
            )
        scorer = self._scorer.info
        info.model.CopyFrom(
            paper_pb2.ModelInfo(
                name=scorer.name,
                hash=scorer.hash,
                dimension=scorer.hidden,
                max_tokens=scorer.max_tokens,
                runtime=scorer.runtime,
                training_cut_off=paper_pb2.PartialDate(year=year, month=month, day=day),
            )
        )
        return info


def _model(settings: RerankerSettings) -> ModelFolder | None:
    if settings.backend is Backend.NONE or (settings.model == PACKAGED_MODEL and not PACKAGED_MODEL.is_dir()):
        return None
    try:
        return read_model_folder(settings.model)
    except RerankerUnusable as error:
        raise UnknownSetting(f"setting CITEWELL_RERANKER__MODEL: {error}") from None


async def _open_scorer(model: ModelFolder, settings: RerankerSettings) -> PairScorer:
    # Each adapter's libraries are loaded only where it is used.
    if settings.backend is Backend.TRITON:
        from citewell.reranker.triton import TritonScorer

        return TritonScorer(
            model,
            settings.triton_address,
            settings.triton_model,
            settings.triton_version,
            channels=settings.triton_channels,
            timeout_seconds=settings.triton_timeout_seconds,
        )
    from citewell.reranker.in_process import InProcessScorer

    kept_bytes = settings.kept_mebibytes << 20
    try:
        return await asyncio.to_thread(
            InProcessScorer, model, settings.runtime, settings.precision, settings.threads, kept_bytes=kept_bytes
        )
    except GraphUnusable as error:
        raise UnknownSetting(f"setting CITEWELL_RERANKER__MODEL: {error}") from error


def _passes(model: ModelFolder, settings: RerankerSettings) -> list[Pass]:
    budgets = [(model.description.budget, MAX_CANDIDATES)]
    if settings.first_pass_share < 1:
        try:
            short = shortened(model.description.budget, settings.first_pass_share)
        except ValueError as error:
            raise UnknownSetting(f"setting CITEWELL_RERANKER__FIRST_PASS_SHARE is too small: {error}") from None
        budgets = [(short, MAX_CANDIDATES), (model.description.budget, settings.second_pass)]

    def make(budget: TokenBudget, keep: int) -> Pass:
        try:
            tokenizer = PairTokenizer.from_file(model.file(TOKENIZER), budget)
        except ValueError as error:
            raise UnknownSetting(f"setting CITEWELL_RERANKER__MODEL: {error}") from None
        return Pass(tokenizer, CandidateTokens(tokenizer, settings.cached_candidates), keep)

    return [make(budget, keep) for budget, keep in budgets]


def _record(batch: BatchReport) -> None:
    _pairs.add(batch.pairs)
    _tokens.add(batch.tokens)
    _fill.record(batch.tokens / batch.padded_tokens)
    _batch_seconds.record(batch.seconds)
    _batch_requests.record(batch.requests)


def _candidates(request: messages.RerankRequest, citing_contexts: int) -> list[Candidate]:
    """The request's candidates, each with as many citing contexts as the model reads."""
    if not 1 <= len(request.candidates) <= MAX_CANDIDATES:
        raise InvalidField("candidates", f"{len(request.candidates)} candidates", f"1 to {MAX_CANDIDATES}")
    candidates, seen = [], dict[str, int]()
    for i, one in enumerate(request.candidates):
        where = f"candidates[{i}]"
        if not one.paper_id:
            raise InvalidField(f"{where}.paper_id", "", "the id of a paper")
        if (before := seen.setdefault(one.paper_id, i)) != i:
            raise InvalidField(f"{where}.paper_id", one.paper_id, f"an id of its own: candidates[{before}] has it too")
        if one.rank < 1:
            raise InvalidField(f"{where}.rank", one.rank, "the 1-indexed rank in the retrieved list")
        for field, value, limit in (("title", one.title, MAX_TITLE), ("abstract", one.abstract, MAX_ABSTRACT)):
            if len(value) > limit:
                raise InvalidField(
                    f"{where}.{field}", f"{len(value)} characters", f"at most {limit}", reason="TEXT_TOO_LONG"
                )
        if len(one.citing_contexts) > MAX_EVIDENCE:
            raise InvalidField(
                f"{where}.citing_contexts", f"{len(one.citing_contexts)} contexts", f"at most {MAX_EVIDENCE}"
            )
        for n, said in enumerate(one.citing_contexts):
            if len(said) > MAX_PASSAGE:
                raise InvalidField(
                    f"{where}.citing_contexts[{n}]",
                    f"{len(said)} characters",
                    f"at most {MAX_PASSAGE}",
                    reason="TEXT_TOO_LONG",
                )
        # More contexts than the model was trained with would leave each too few tokens.
        text = CandidateText(one.title, one.abstract, tuple(one.citing_contexts[:citing_contexts]))
        candidates.append(Candidate(one.paper_id, one.rank, text))
    return candidates


def _depth(asked: int) -> int:
    if not 0 <= asked <= MAX_CANDIDATES:
        raise InvalidField("depth", asked, f"0 (the default) to {MAX_CANDIDATES}")
    return asked


def _paper(ranked: RankedPaper) -> messages.RerankedPaper:
    # A None leaves an optional field unset.
    return messages.RerankedPaper(
        paper_id=ranked.paper_id,
        rank=ranked.rank,
        score=ranked.score,
        prior=ranked.prior,
        text_gate=ranked.text_gate,
        prior_gate=ranked.prior_gate,
    )


def _response(done: Reranking, model_hash: str) -> messages.RerankResponse:
    return messages.RerankResponse(
        papers=map(_paper, done.papers),
        model_hash=model_hash,
        scored=done.scored,
        depth=done.depth,
        partial_reason=done.partial.value,
        queue_seconds=done.queue_seconds,
        tokenize_seconds=done.tokenize_seconds,
        inference_seconds=done.inference_seconds,
    )
