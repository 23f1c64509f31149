"""Admission by a real server: what is too much is refused at once, with the time to retry, and nothing else suffers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.reranker.v1 import reranker_pb2
from citewell.runtime import admission, deadlines
from citewell.runtime.admission import Admission, AdmissionLimits
from citewell.runtime.channels import invoke, open_channel
from citewell.runtime.errors import CitewellError, Overloaded
from citewell.runtime.settings import ServiceSettings
from tests.integration.test_service_process import connected, rerank, running

METHOD = "/citewell.reranker.v1.RerankerService/Rerank"


async def outcomes(calls: list[Any]) -> list[str]:
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return [answer.reason if isinstance(answer, CitewellError) else "OK" for answer in answers]


async def test_more_calls_than_allowed_are_refused_at_once_while_others_go_on() -> None:
    async with running(ServiceSettings(most_calls=8)) as (service, process), connected(process) as stub:
        waiting = [asyncio.create_task(rerank(stub, "wait")) for _ in range(64)]
        held = set(waiting)
        while len(held) > 8:
            done, held = await asyncio.wait(held, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert done, "more than 8 calls are held"
        for refused in set(waiting) - held:
            error = refused.exception()
            assert isinstance(error, Overloaded)
            assert error.reason == "OVERLOADED"
            assert error.retry_after_seconds > 0
            assert "8 calls are in progress" in error.message
        # Neither other methods nor probes are refused meanwhile.
        with deadlines.within(10):
            await invoke(stub.Info, reranker_pb2.InfoRequest(), "info")
        async with open_channel(f"localhost:{process.port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            assert (await check(health_pb2.HealthCheckRequest(service="alive"), timeout=10)).status == 1
        service.release.set()
        assert sorted(await outcomes(waiting)) == ["OK"] * 8 + ["OVERLOADED"] * 56
        assert (await rerank(stub, "")).scored == 1


async def test_requests_that_hold_too_many_bytes_are_refused_and_a_single_large_one_is_not() -> None:
    async with running(ServiceSettings(most_request_megabytes=1)) as (service, process), connected(process) as stub:

        def large(context: str) -> Any:
            async def call() -> Any:
                request = reranker_pb2.RerankRequest(context=context, title="x" * 3_000_000)
                with deadlines.within(10):
                    return await invoke(stub.Rerank, request, "rerank", wait_for_ready=True)

            return call()

        alone = asyncio.create_task(large("wait"))
        await asyncio.wait_for(service.called.wait(), 10)
        with pytest.raises(Overloaded, match="requests of 2 MiB are in progress"):
            await large("")
        service.release.set()
        assert (await alone).scored == 1
        assert (await large("")).scored == 1


async def test_calls_that_cannot_finish_in_time_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that serves one call at a time, 50 ms each: of 64 at once, those that fit into a second are served."""
    monkeypatch.setattr(admission, "PACED", frozenset({METHOD}))
    ended: list[str] = []

    async def ask() -> None:
        # The deadline is far beyond the second, so that a pause of the machine makes no call late.
        ended.extend(await outcomes([rerank(stub, "slow", seconds=20.0)]))

    settings = ServiceSettings(longest_wait_seconds=1.0)
    async with running(settings) as (_, process), connected(process) as stub:
        for _ in range(5):  # these tell what a call costs; one of them may have been slow
            assert (await rerank(stub, "slow")).scored == 1
        await asyncio.gather(*(ask() for _ in range(64)))
    assert set(ended) == {"OK", "OVERLOADED"}
    assert ended.count("OK") >= 3
    assert ended.count("OVERLOADED") >= 20
    assert ended[-1] == "OK", "a refusal comes before the calls that were taken have ended"


def test_a_call_is_taken_only_if_it_fits_its_own_deadline() -> None:
    now = 0.0
    gate = Admission(AdmissionLimits(100, 1 << 20, 5.0), lambda: now)
    name = next(iter(admission.PACED))
    with gate.call(name, 10, 30.0):
        now += 0.1
    with gate.call(name, 10, 0.3):
        with pytest.raises(Overloaded, match=r"would take about 0\.2 s and may take 0\.2 s"):
            gate.call(name, 10, 0.24).__enter__()
        with gate.call(name, 10, 0.26):
            pass


def test_an_estimate_that_is_too_high_corrects_itself() -> None:
    now = 0.0
    gate = Admission(AdmissionLimits(100, 1 << 20, 5.0), lambda: now)
    name = next(iter(admission.PACED))

    def call(seconds: float) -> None:
        nonlocal now
        with gate.call(name, 10, 30.0):
            now += seconds

    call(60.0)  # one slow moment, e.g. a model that had to be loaded
    with gate.call(name, 10, 30.0), pytest.raises(Overloaded), gate.call(name, 10, 30.0):
        pass
    for _ in range(12):
        call(0.02)
    with gate.call(name, 10, 30.0), gate.call(name, 10, 30.0):
        pass
