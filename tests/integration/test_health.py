"""What probes are told: alive, started and ready, by a real server whose event loop may hang."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.runtime import health
from citewell.runtime.server import ServiceProcess
from tests.integration.test_service_process import NAME, running
from tests.servers.processes import end

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def said(process: ServiceProcess) -> dict[str, bool]:
    """What each name is told to a probe now."""
    async with grpc.aio.insecure_channel(f"localhost:{process.port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return {
            name: (await check(health_pb2.HealthCheckRequest(service=name), timeout=10, wait_for_ready=True)).status
            == SERVING
            for name in (health.ALIVE, health.STARTED, health.READY, "", NAME)
        }


async def until(process: ServiceProcess, wanted: int) -> None:
    async with grpc.aio.insecure_channel(f"localhost:{process.port}") as channel:
        request = health_pb2.HealthCheckRequest(service=health.READY)
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True, timeout=20)
        async for answer in watch:
            if answer.status == wanted:
                watch.cancel()
                return


async def test_alive_started_and_ready_are_told_apart() -> None:
    async with running(warm=False) as (service, process):
        assert await said(process) == {"alive": True, "started": False, "ready": False, "": False, NAME: False}
        service.warm.set()
        await until(process, SERVING)
        assert await said(process) == {"alive": True, "started": True, "ready": True, "": True, NAME: True}
        service.healthy = False
        await until(process, NOT_SERVING)
        assert await said(process) == {"alive": True, "started": True, "ready": False, "": False, NAME: False}


async def test_a_dependency_that_is_gone_shows_in_the_log_and_leaves_the_service_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running() as (service, process):
        await until(process, SERVING)
        service.store_is_gone = True
        shown = ""
        while "the store is gone" not in shown:
            await asyncio.sleep(0.05)
            shown += capsys.readouterr().out
        assert (await said(process))["ready"]


_SERVER = """
import asyncio, signal
from citewell.runtime.server import ServiceProcess
from citewell.runtime.settings import ServiceSettings
from tests.integration.test_service_process import SmallService

async def serve():
    service = SmallService()
    service.warm.set()
    process = ServiceProcess("small", ServiceSettings(), service)
    running = asyncio.create_task(process.run())
    await process.bound.wait()
    print(process.port, flush=True)
    await running

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
signal.signal(signal.SIGUSR1, lambda *_: signal.sigwait({signal.SIGUSR2}))  # on the event loop's thread
asyncio.run(serve())
"""


def test_a_hung_event_loop_fails_liveness_and_passes_it_again_afterwards(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    with server.stdout:
        port = int(server.stdout.readline())
        try:
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                request = health_pb2.HealthCheckRequest(service=health.ALIVE)
                assert check(request, timeout=10, wait_for_ready=True).status == SERVING
                server.send_signal(signal.SIGUSR1)
                with pytest.raises(grpc.RpcError) as hung:
                    check(request, timeout=1)
                assert hung.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                socket.create_connection(("localhost", port), timeout=5).close()  # all that a TCP probe asks for
                server.send_signal(signal.SIGUSR2)
                assert check(request, timeout=20).status == SERVING
        finally:
            server.send_signal(signal.SIGUSR2)
            server.terminate()
            end(server, tmp_path / "log")
