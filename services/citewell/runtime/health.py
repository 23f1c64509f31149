"""Health by the standard gRPC health protocol, under one name a question.

    alive     the process answers; a hung event loop does not. For liveness probes.
    started   the service has opened its stores and warmed its models, once and for all. For startup probes.
    ready     it takes calls now. For readiness probes and load balancers; also under the empty name and under each
              gRPC service's name.

A dependency that is gone makes no service unready: then one lost pod would take all its callers out of the load
balancer. It shows in the answers, in the metric citewell_dependency_up and in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from citewell.runtime import telemetry

ALIVE, STARTED, READY = "alive", "started", "ready"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

DEPENDENCY_SECONDS = 5.0

Check = Callable[[], Awaitable[None]]

_dependency_up = telemetry.meter.create_gauge(
    "citewell_dependency_up", description="1 while a dependency answers, 0 while it does not"
)


class Health:
    """What a process says about itself."""

    def __init__(self, grpc_services: Sequence[str]) -> None:
        self._servicer = health.HealthServicer()
        self._ready_names = ("", READY, *grpc_services)

    def register(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def starting(self) -> None:
        await self._servicer.set(ALIVE, SERVING)
        await self._servicer.set(STARTED, NOT_SERVING)
        await self.ready(False)

    async def started(self) -> None:
        await self._servicer.set(STARTED, SERVING)

    async def ready(self, ready: bool) -> None:
        for name in self._ready_names:
            await self._servicer.set(name, SERVING if ready else NOT_SERVING)


class Dependencies:
    """What a service depends on: asked now and then, shown in a metric and in the log."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._up: dict[str, bool] = {}

    async def look(self) -> None:
        """Asks all of them once."""
        await asyncio.gather(*(self._look(name, check) for name, check in self._checks.items()))

    async def _look(self, name: str, check: Check) -> None:
        try:
            await asyncio.wait_for(check(), DEPENDENCY_SECONDS)
            up, why = True, ""
        except Exception as error:  # whatever it was, this dependency cannot be used now
            up, why = False, f"{error}" or type(error).__name__
        _dependency_up.set(int(up), {"dependency": name})
        if self._up.get(name) is not up:
            self._up[name] = up
            log = telemetry.logger.info if up else telemetry.logger.warning
            log("dependency", dependency=name, up=up, why=why)
