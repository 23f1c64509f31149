"""`citewell explain`: why one paper stands where it stands."""

from __future__ import annotations

from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console

from citewell.client import Explanation, Options
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
def explain(
    target: Target,
    paper_id: Annotated[str, typer.Argument(help="The paper in question.")],
    context: ContextArgument = "-",
    title: TitleOption = "",
    abstract: AbstractOption = "",
    before: BeforeOption = "",
    knowledge: KnowledgeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explains one paper's place for a query: every stage's rank and score, and what the profile score is made of."""
    query = asked(context, title, abstract)
    options = Options(filter=dated(before), as_of=as_of(before, knowledge=knowledge))

    async def call() -> Explanation:
        async with target.client("recommender") as client:
            return await client.explain(query, paper_id, options)

    found = target.run(call())
    if as_json:
        typer.echo(MessageToJson(found.message, preserving_proto_field_name=True))
        return
    console = Console(highlight=False)
    print_item(found.item, console)
    if not found.item.rank:
        console.print("     it is not among the candidates: no stage ranked it")
    console.print(
        f"     profile score: {found.content_share:.0%} from its own text, {found.context_share:.0%} from what others "
        f"said of it, {found.citing_share:.0%} from who they are"
    )
    print_degraded(found.degraded, console)
