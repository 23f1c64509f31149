"""`citewell status`: which services serve, where, and what they hold."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.client import AsyncCitewell
from citewell.commands.calls import JsonOption, Target, calls_services
from citewell.commands.failing import FAILED
from citewell.commands.stack import SERVICES
from citewell.index.v1 import index_pb2
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.runtime.channels import invoke
from citewell.runtime.errors import CitewellError, NotFound

HEALTH_NAMES = {
    "recommender": "citewell.recommender.v1.RecommenderService",
    "profiler": "citewell.profiler.v1.LedgerService",
    "index": "citewell.index.v1.IndexService",
    "reranker": "citewell.reranker.v1.RerankerService",
    "ingestion": "citewell.ingestion.v1.IngestionService",
    "edge": "citewell.edge",
}
EDGE, EDGE_HEALTH_NAME = "edge", "ready"
"""The edge serves HTTP and has no gRPC service of its own."""


@dataclass
class Row:
    """One service, as it answered."""

    service: str
    address: str
    serving: bool
    problem: str = ""
    holds: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        holds = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.holds.items())
        state = "serving" if self.serving else "not serving"
        return f"{self.service:<12} {self.address:<22} {state:<12} {self.problem or holds}".rstrip()


@calls_services(timeout=5.0, takes_address=False)
def status(
    target: Target,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(help="host:port of services; without any: what `up` started.", metavar="ADDRESS…"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prints one line per service. Exit code 1: one of them does not serve."""
    rows = target.run(_rows(target, addresses or []))
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            typer.echo(str(row))
    if not all(row.serving for row in rows):
        raise typer.Exit(FAILED)


async def _rows(target: Target, addresses: list[str]) -> list[Row]:
    if addresses:
        found = await asyncio.gather(*(_at(target, address) for address in addresses))
        return [row for rows in found for row in rows]
    names = sorted(SERVICES, key=SERVICES.__getitem__)
    return await asyncio.gather(*(_of(target, service, target.address_of(service)) for service in names))


async def _at(target: Target, address: str) -> list[Row]:
    """Every service that is at an address."""
    there = [await _of(target, service, address) for service in HEALTH_NAMES]
    known = [row for row in there if row.problem != NOT_HERE]
    unreachable = [row for row in known if not row.serving]
    if len(unreachable) == len(HEALTH_NAMES):
        return [Row("?", address, False, unreachable[0].problem)]
    if known:
        return known
    edge = await _of(target, EDGE, address)
    return [edge if edge.problem != NOT_HERE else Row("?", address, False, "no service of citewell is here")]


NOT_HERE = "this service is not here"


async def _of(target: Target, service: str, address: str) -> Row:
    async with replace(target, address=address).channel(service) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=HEALTH_NAMES.get(service, EDGE_HEALTH_NAME))
            answer = await invoke(health_pb2_grpc.HealthStub(channel).Check, request, "health", at_most=2.0)
            if answer.status != health_pb2.HealthCheckResponse.SERVING:
                return Row(service, address, False, "it is not ready")
            row = Row(service, address, True)
        except NotFound:
            return Row(service, address, False, NOT_HERE)
        except CitewellError as error:
            return Row(service, address, False, error.message)
        try:
            row.holds = await _holdings(target, service, address, channel)
        except CitewellError as error:  # it serves, and says why it cannot tell what it holds
            row.problem = error.message
        return row


async def _holdings(target: Target, service: str, address: str, channel: grpc.aio.Channel) -> dict[str, Any]:
    if service == "index":
        stats = await invoke(IndexServiceStub(channel).Stats, index_pb2.StatsRequest(), "stats")
        return {
            "papers": stats.papers,
            "spans": stats.spans,
            "disk_bytes": stats.disk_bytes,
            "view": stats.index_view,
        }
    if service == "ingestion":
        async with AsyncCitewell(ingestion=address, tls=target.tls, token=target.token) as client:
            log = await client.log()
        return {
            "log": log.kind,
            "events": sum(each.end_offset - each.first_offset for each in log.partitions),
            "to_apply": sum(each.behind for each in log.partitions),
            "dead_letters": log.dead_letters,
        }
    return {}


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
