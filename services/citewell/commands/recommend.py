"""`citewell recommend`: what to cite, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console
from rich.markup import escape

from citewell.commands.calls import AddressOption, DataOption, TimeoutOption, channel_to, run
from citewell.commands.stack import DEFAULT_DATA
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import invoke
from citewell.runtime.errors import InvalidField
from citewell.scholarly.dates import PartialDate
from citewell.types.messages import date_to_message


def recommend(
    context: Annotated[
        str,
        typer.Argument(
            help="Sentences with TARGETCIT where the citation is missing; - or nothing reads standard input."
        ),
    ] = "-",
    title: Annotated[str, typer.Option(help="The draft's title.")] = "",
    abstract: Annotated[str, typer.Option(help="The draft's abstract.")] = "",
    top_k: Annotated[int, typer.Option("--top-k", "-k", help="How many papers, 1 to 100.")] = 10,
    before: Annotated[
        str, typer.Option(help="Only papers and evidence before this date: YYYY, YYYY-MM or YYYY-MM-DD.")
    ] = "",
    knowledge: Annotated[bool, typer.Option("--knowledge", help="With --before: rank by what was known then.")] = False,
    evidence: Annotated[int, typer.Option(help="Citing sentences a paper, 0 to 20.")] = 1,
    rerank: Annotated[bool, typer.Option(help="Let the reranker read the best candidates.")] = True,
    diversity: Annotated[float, typer.Option(help="0 (relevance alone) to 1.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="The whole answer as JSON.")] = False,
    data: DataOption = DEFAULT_DATA,
    address: AddressOption = "",
    timeout: TimeoutOption = 30.0,
) -> None:
    """Recommends papers for a marked place, with every stage's opinion and the words of those who cite them."""
    if context == "-":
        context = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    options = messages.Options(
        top_k=top_k,
        evidence_per_item=evidence,
        rerank=rerank,
        diversity=diversity,
        as_of=messages.AS_OF_KNOWLEDGE if knowledge else messages.AS_OF_FILTER,
    )
    if before:
        try:
            options.filter.published_before.CopyFrom(date_to_message(PartialDate.parse(before)))
        except ValueError as error:
            raise InvalidField("--before", before, f"a date ({error})") from None
    query = messages.Query(context=context, title=title, abstract=abstract)
    answer = run(ask(messages.RecommendRequest(query=query, options=options), data, address), timeout)
    if as_json:
        typer.echo(MessageToJson(answer, preserving_proto_field_name=True))
    else:
        print_answer(answer)


async def ask(request: messages.RecommendRequest, data: Path, address: str = "") -> messages.RecommendResponse:
    """The recommender's answer."""
    async with channel_to("recommender", data, address) as channel:
        answer: messages.RecommendResponse = await invoke(
            RecommenderServiceStub(channel).Recommend, request, "recommend"
        )
        return answer


def print_answer(answer: messages.RecommendResponse, console: Console | None = None) -> None:
    """The items and why they are there, readably."""
    console = console or Console(highlight=False)
    if not answer.items:
        console.print("no paper fits the filter, or the index is empty")
    for item in answer.items:
        paper = item.paper
        date = PartialDate(paper.published.year, paper.published.month, paper.published.day)
        published = ", ".join(filter(None, [escape(paper.venue), str(date)]))
        console.print(f"[bold]{item.rank:>3}  {escape(paper.title)}[/bold]  [dim]{escape(paper.id)}  {published}[/dim]")
        opinions = " → ".join(f"{one.stage} #{one.rank} ({one.score:.3f})" for one in item.stages)
        console.print(f"     {opinions}; prior {item.prior:.2f}; cited by {item.in_degree:,}")
        for span in item.evidence:
            console.print(f"     [italic]“{escape(span.text)}”[/italic] [dim]{escape(span.citing_id)}[/dim]")
    if answer.as_of_note:
        console.print(f"note: {escape(answer.as_of_note)}")
    for degradation in answer.degraded:
        console.print(f"[yellow]{degradation.reason}[/yellow]: {escape(degradation.message)}")
    timings = ", ".join(f"{one.stage} {one.seconds * 1000:.0f} ms" for one in answer.timings)
    console.print(f"[dim]{timings}[/dim]")
