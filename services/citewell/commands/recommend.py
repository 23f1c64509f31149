"""`citewell recommend`: what to cite, and why."""

from __future__ import annotations

from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.markup import escape

from citewell.client import Options, Recommendation
from citewell.commands.asking import (
    AbstractOption,
    BeforeOption,
    ContextArgument,
    KnowledgeOption,
    TitleOption,
    as_of,
    asked,
    dated,
    print_degraded,
    print_item,
)
from citewell.commands.calls import JsonOption, Target, calls_services


@calls_services()
def recommend(
    target: Target,
    context: ContextArgument = "-",
    title: TitleOption = "",
    abstract: AbstractOption = "",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, max=100, help="How many papers.")] = 10,
    before: BeforeOption = "",
    knowledge: KnowledgeOption = False,
    evidence: Annotated[int, typer.Option(min=0, max=20, help="Citing sentences per paper.")] = 1,
    rerank: Annotated[bool, typer.Option(help="Let the reranker read the best candidates.")] = True,
    diversity: Annotated[float, typer.Option(min=0, max=1, help="From 0, relevance alone, to 1.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Recommends papers for a marked place, with every stage's opinion and the words of those who cite them."""
    options = Options(
        top_k=top_k,
        filter=dated(before),
        as_of=as_of(before, knowledge=knowledge),
        evidence_per_item=evidence,
        rerank=rerank,
        diversity=diversity,
    )
    query = asked(context, title, abstract)

    async def call() -> Recommendation:
        async with target.client("recommender") as client:
            return await client.recommend(query, options)

    answer = target.run(call())
    if as_json:
        typer.echo(MessageToJson(answer.message, preserving_proto_field_name=True))
    else:
        print_answer(answer)


def print_answer(answer: Recommendation, console: Console | None = None, most: int | None = None) -> None:
    """The first items and why they are there, for people."""
    console = console or Console(highlight=False)
    if not answer.items:
        console.print("no paper fits the filter, or the index is empty")
    for item in answer.items[:most]:
        print_item(item, console)
    if answer.as_of_note:
        console.print(f"note: {escape(answer.as_of_note)}")
    print_degraded(answer.degraded, console)
    timings = ", ".join(f"{stage} {seconds * 1000:.0f} ms" for stage, seconds in answer.timings.items())
    console.print(f"[dim]{timings}[/dim]")
