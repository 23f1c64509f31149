"""`citewell status`: who serves where, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import grpc
import typer

from citewell.commands.calls import address_of, channel_to, run
from citewell.commands.stack import DEFAULT_DATA, SERVICES
from citewell.index.v1 import index_pb2
from citewell.index.v1.index_pb2_grpc import IndexServiceStub
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.runtime.channels import invoke, require_serving
from citewell.runtime.errors import CitewellError


def status(data: Annotated[Path, typer.Option(help="The folder that `up` was given.")] = DEFAULT_DATA) -> None:
    """Prints one line a service; ends with code 1 unless all serve."""
    rows = [run(_describe(service, data), 5.0) for service in sorted(SERVICES, key=SERVICES.__getitem__)]
    for row in rows:
        typer.echo("{:<12} {:<22} {:<12} {}".format(*row).rstrip())
    if any(row[2] != "serving" for row in rows):
        raise typer.Exit(1)


async def _describe(service: str, data: Path) -> tuple[str, str, str, str]:
    address = address_of(service, data)
    async with channel_to(service, data) as channel:
        try:
            await require_serving(channel, "", service)
            holds = await _holdings(service, channel)
        except CitewellError as error:
            return service, address, "not serving", error.message
    return service, address, "serving", holds


async def _holdings(service: str, channel: grpc.aio.Channel) -> str:
    if service == "index":
        stats = await invoke(IndexServiceStub(channel).Stats, index_pb2.StatsRequest(), "stats")
        return (
            f"{stats.papers:,} papers, {stats.spans:,} spans, {stats.disk_bytes / 1e6:,.0f} MB, view {stats.index_view}"
        )
    if service == "ingestion":
        info = await invoke(IngestionServiceStub(channel).Info, ingestion_pb2.InfoRequest(), "info")
        written = sum(each.end_offset - each.first_offset for each in info.partitions)
        behind = sum(each.end_offset - max(each.committed_offset, each.first_offset) for each in info.partitions)
        return f"{info.log_kind} log, {written:,} events, {behind:,} to apply, {info.dead_letters:,} dead letters"
    return ""
