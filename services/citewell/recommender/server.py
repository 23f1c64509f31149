"""The public API's gRPC handlers: messages in, domain, messages out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.metrics import CallbackOptions, Observation

from citewell import __version__
from citewell.recommender.answers import Reason
from citewell.recommender.confidence import Calibration, read_calibration
from citewell.recommender.feedback import Policy, record_feedback
from citewell.recommender.index_client import IndexClient
from citewell.recommender.ingestion_client import IngestionClient
from citewell.recommender.manuscripts import answer_manuscript
from citewell.recommender.messages import (
    answer_to_message,
    degradation_to_message,
    item_to_message,
    options_from_message,
)
from citewell.recommender.profiler_client import ProfilerClient
from citewell.recommender.queries import DEFAULT_CANDIDATES, DEFAULT_STRATEGY, DEFAULT_TOP_K
from citewell.recommender.recommend import Limits, Recommender
from citewell.recommender.reranker_client import RerankerClient
from citewell.recommender.settings import PACKAGED_CALIBRATION, RecommenderSettings
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import (
    RecommenderServiceServicer,
    add_RecommenderServiceServicer_to_server,
)
from citewell.runtime import deadlines, telemetry
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import CitewellError, Internal, InvalidField, Overloaded
from citewell.runtime.health import Check
from citewell.runtime.pace import Pace
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.limits import MAX_BATCH
from citewell.scholarly.queries import Strategy
from citewell.types.messages import query_from_message

_degraded = telemetry.meter.create_counter(
    "citewell_recommender_degraded", description="Answers that are less than they could be, by reason"
)
_answered = telemetry.meter.create_counter("citewell_recommender_answers", description="Answers, by strategy")
_stages = telemetry.meter.create_histogram(
    "citewell_recommender_stage.duration", unit="s", description="Time of the stages of an answer"
)


class RecommenderServer(RecommenderServiceServicer):
    """Serves RecommenderService."""

    grpc_services = ("citewell.recommender.v1.RecommenderService",)

    def __init__(self, settings: RecommenderSettings) -> None:
        self._settings = settings
        self._calibration = _calibration(settings)
        self._pace = Pace("Recommend", settings.longest_queue_seconds, settings.longest_queue_times, time.monotonic)
        self._feedback = Policy(settings.feedback)

    def register(self, server: grpc.aio.Server) -> None:
        add_RecommenderServiceServicer_to_server(self, server)

    async def start(self) -> None:
        """Opens the channels. Whether anybody answers there, each answer says."""
        settings = self._settings
        addresses = {
            "profiler": settings.profiler_address,
            "index": settings.index_address,
            "reranker": settings.reranker_address,
            "ingestion": settings.ingestion_address,
        }
        channels = self._channels = {name: self._open(address) for name, address in addresses.items() if address}
        self._profiler, index = ProfilerClient(channels["profiler"]), IndexClient(channels["index"])
        self._reranker = RerankerClient(channels["reranker"]) if "reranker" in channels else None
        self._ingestion = IngestionClient(channels["ingestion"]) if "ingestion" in channels else None
        ports = self._profiler, index, index, self._reranker, self._ingestion
        self._recommender = Recommender(*ports, Limits.of(settings), time.monotonic, self._calibration)
        for reason in Reason:  # a rate needs a value from before the first increase
            _degraded.add(0, {"reason": reason})
        telemetry.meter.create_observable_gauge(
            "citewell_recommender_breaker_open",
            callbacks=[self._open_breakers],
            description="1 while a service that answers can do without is left alone after failures",
        )

    def _open_breakers(self, options: CallbackOptions) -> list[Observation]:
        return [
            Observation(int(breaker.is_resting), {"service": service})
            for service, breaker in self._recommender.breakers.items()
        ]

    def _open(self, address: str) -> grpc.aio.Channel:
        told = self._settings
        return open_channel(address, told.client_tls, told.max_message_megabytes, told.client_token)

    async def check(self) -> None:
        """A started recommender can always answer; what an answer lacks without a dependency, the answer says."""

    def dependencies(self) -> Mapping[str, Check]:
        names = {
            "profiler": "citewell.profiler.v1.ProfileQueryService",
            "index": "citewell.index.v1.IndexService",
            "reranker": "citewell.reranker.v1.RerankerService",
            "ingestion": "citewell.ingestion.v1.IngestionService",
        }
        return {name: partial(require_serving, self._channels[name], names[name]) for name in self._channels}

    async def stop(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def Recommend(self, request: messages.RecommendRequest, context: Any) -> messages.RecommendResponse:
        if request.options.min_watermark:  # it mostly waits, which slows down no other call
            return await self._answer(request)
        with self._pace.call(deadlines.remaining()) as taken:
            answer = await self._answer(request)
            taken.tells = not _waited_in_vain(answer)
            return answer

    async def _answer(self, request: messages.RecommendRequest) -> messages.RecommendResponse:
        options = options_from_message(request.options, self._settings.default_rerank_depth)
        query = query_from_message(request.query, "query")
        answer = await self._recommender.recommend(query, options, _remaining)
        _answered.add(1, {"strategy": options.strategy.value})
        for degradation in answer.degraded:
            _degraded.add(1, {"reason": degradation.reason})
        for stage, seconds in answer.timings:
            _stages.record(seconds, {"stage": stage})
        return answer_to_message(answer, full=options.full)

    async def RecommendBatch(
        self, request: messages.RecommendBatchRequest, context: Any
    ) -> messages.RecommendBatchResponse:
        if not 1 <= len(request.requests) <= MAX_BATCH:
            raise InvalidField("requests", f"{len(request.requests)} requests", f"1 to {MAX_BATCH}")
        in_flight = asyncio.Semaphore(self._settings.batch_in_flight)

        async def one(each: messages.RecommendRequest) -> messages.RecommendResult:
            async with in_flight:
                return await self._result(each, context)

        return messages.RecommendBatchResponse(results=await asyncio.gather(*map(one, request.requests)))

    async def _result(self, request: messages.RecommendRequest, context: Any) -> messages.RecommendResult:
        """One answer among several: an error of its own does not fail the others."""
        try:
            with self._pace.call(deadlines.remaining(), refuse=False) as taken:
                answer = await self._answer(request)
                taken.tells = not _waited_in_vain(answer)
                return messages.RecommendResult(response=answer)
        except CitewellError as known:
            return messages.RecommendResult(error=_told(known))
        except Exception:
            telemetry.logger.exception("a request among several failed by a defect")
            error = Internal("an internal error happened; the service's log has it")
            return messages.RecommendResult(error=_told(error))

    async def RecommendManuscript(
        self, request: messages.RecommendManuscriptRequest, context: Any
    ) -> AsyncIterator[messages.RecommendManuscriptResponse]:
        options_from_message(request.options, self._settings.default_rerank_depth).validate()
        answers = answer_manuscript(request, lambda each: self._result(each, context), self._settings.batch_in_flight)
        async with aclosing(answers):
            async for answer in answers:
                yield answer

    async def Explain(self, request: messages.ExplainRequest, context: Any) -> messages.ExplainResponse:
        if not request.paper_id:
            raise InvalidField("paper_id", "", "the id of a paper")
        options = options_from_message(request.options, self._settings.default_rerank_depth)
        query = query_from_message(request.query, "query")
        explained = await self._recommender.explain(query, request.paper_id, options, _remaining)
        return messages.ExplainResponse(
            item=item_to_message(explained.item, full=options.full),
            content_share=explained.content_share,
            context_share=explained.context_share,
            citing_share=explained.citing_share,
            degraded=map(degradation_to_message, explained.degraded),
        )

    async def RecordFeedback(
        self, request: messages.RecordFeedbackRequest, context: Any
    ) -> messages.RecordFeedbackResponse:
        return await record_feedback(request, self._feedback, self._ingestion)

    async def Info(self, request: messages.InfoRequest, context: Any) -> messages.InfoResponse:
        profiler = await self._profiler.info()
        info = messages.InfoResponse(
            version=__version__,
            encoder=profiler.encoder,
            default_top_k=DEFAULT_TOP_K,
            default_candidates=DEFAULT_CANDIDATES,
            default_rerank_depth=self._settings.default_rerank_depth,
            strategies=map(_strategy_to_message, Strategy),
            default_strategy=_strategy_to_message(DEFAULT_STRATEGY),
            as_of_limits=profiler.as_of_limits,
            settings_hash=profiler.settings_hash,
            lexical_weight=profiler.lexical_weight,
            statistics=profiler.statistics,
            feedback=self._feedback.message,
        )
        if self._reranker is not None:
            try:
                reranker = await self._reranker.info()
            except CitewellError as error:
                info.speed_note = f"the reranker does not answer: {error.message}"
            else:
                info.reranker.CopyFrom(reranker.model)
                info.speed_note = reranker.speed_note
        return info


def _calibration(settings: RecommenderSettings) -> Calibration:
    path = Path(settings.confidence_file) if settings.confidence_file else PACKAGED_CALIBRATION
    try:
        return read_calibration(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnknownSetting(f"confidence_file {str(path)!r} cannot be used: {error}") from None


def _strategy_to_message(strategy: Strategy) -> messages.Strategy.ValueType:
    return messages.Strategy.Value(f"STRATEGY_{strategy.value}")


def _waited_in_vain(answer: messages.RecommendResponse) -> bool:
    """Whether the answer waited for a reranker that is lost: that says nothing of how fast others are answered."""
    return any(each.reason in (Reason.RERANKER_UNAVAILABLE, Reason.RERANK_TIMEOUT) for each in answer.degraded)


def _told(error: CitewellError) -> messages.RecommendError:
    field = error.field if isinstance(error, InvalidField) else ""
    told = messages.RecommendError(code=error.code, reason=error.reason, message=error.message, field=field)
    if isinstance(error, Overloaded):
        told.retry_delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
    return told


def _remaining() -> float:
    return deadlines.remaining() - deadlines.MARGIN_SECONDS
