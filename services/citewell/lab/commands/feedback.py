"""`citewell export feedback`: what writers chose, as a data set that `evaluate` and `train` read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import print

from citewell.commands.calls import Target, calls_services
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.lab.commands.options import failing_clearly
from citewell.lab.feedback import Exported, Shares, export
from citewell.runtime.channels import invoke
from citewell.types.v1 import feedback_pb2

PAGE = 1000


@calls_services(timeout=600.0)
def feedback(
    target: Target,
    out: Annotated[Path, typer.Argument(help="New folder for papers, contexts, splits and choices.")],
    corpus: Annotated[
        Path, typer.Option(help="Folder of the corpus that the services hold, as `load` reads it.", exists=True)
    ],
    train_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the drafts to train on.")] = 0.0,
    validation_share: Annotated[float, typer.Option(min=0, max=1, help="Share of the drafts to validate on.")] = 0.2,
) -> None:
    """Write the recorded feedback in the lab's format: choices of writers whose text was kept are test contexts.

    The feedback is read from ingestion, before anything is written.
    """
    with failing_clearly():
        if out.exists():
            raise ValueError(f"{out} exists; give a new folder")
        if train_share + validation_share > 1:
            raise ValueError(f"--train-share {train_share} and --validation-share {validation_share} exceed 1 together")
    events = target.run(_events(target))
    with failing_clearly():
        told = export(events, corpus, out, Shares(train_share, validation_share))
    print(_summary(told))


async def _events(target: Target) -> list[feedback_pb2.Feedback]:
    events: list[feedback_pb2.Feedback] = []
    request = ingestion_pb2.ListFeedbackRequest(page_size=PAGE)
    async with target.channel("ingestion") as channel:
        stub = IngestionServiceStub(channel)
        while True:
            page = await invoke(stub.ListFeedback, request, "feedback")
            events.extend(page.feedback)
            if not page.next_page_token:
                return events
            request.page_token = page.next_page_token


def _summary(told: Exported) -> str:
    lines = [
        f"{told.events} events, {told.with_choice} with a choice, {told.contexts} contexts",
        f"mean reciprocal rank of what was chosen: {told.reciprocal_rank:.3f}",
    ]
    if told.without_text:
        lines.append(f"{told.without_text} choices are no contexts: the writer's text was not kept")
    if told.unknown_papers:
        lines.append(f"{told.unknown_papers} choices are no contexts: the corpus lacks the paper")
    if told.rejected:
        lines.append(f"{told.rejected} records of the corpus cannot be used")
    return "\n".join(lines)
