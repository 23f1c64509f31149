"""What `recommend` and `explain` share: the query and the filter from the command line, and items for people."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from citewell.client import AsOf, Degradation, Item, Query, SearchFilter
from citewell.client.results import STAGE_NAMES
from citewell.runtime.errors import InvalidField
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.decoding import decoded

ContextArgument = Annotated[
    str,
    typer.Argument(help="Sentences with TARGETCIT where the citation is missing; - reads standard input."),
]
TitleOption = Annotated[str, typer.Option(help="The draft's title.")]
AbstractOption = Annotated[str, typer.Option(help="The draft's abstract.")]
BeforeOption = Annotated[
    str, typer.Option(help="Only papers and evidence before this date: YYYY, YYYY-MM or YYYY-MM-DD.")
]
SHOWN_SHARE = 0.005
"""Smaller contributions to a score are not printed."""
KnowledgeOption = Annotated[bool, typer.Option("--knowledge", help="With --before: rank by what was known then.")]


def asked(context: str, title: str, abstract: str) -> Query:
    """The query; `-` stands for standard input. Text that is not UTF-8 is read as Latin-1, like drafts."""
    told = b"" if context != "-" or sys.stdin.isatty() else sys.stdin.buffer.read()
    texts = (told if context == "-" else os.fsencode(context), os.fsencode(title), os.fsencode(abstract))
    return Query(*(decoded(text)[0].strip() for text in texts))


def dated(before: str) -> SearchFilter:
    """The filter that --before asks for."""
    try:
        return SearchFilter(published_before=PartialDate.parse(before))
    except ValueError as error:
        raise InvalidField("--before", before, f"a date ({error})") from None


def as_of(before: str, *, knowledge: bool) -> AsOf:
    """What --knowledge asks for; it needs --before."""
    if knowledge and not before:
        raise InvalidField("--knowledge", "given alone", "--before with a date beside it")
    return AsOf.KNOWLEDGE if knowledge else AsOf.FILTER


def print_item(item: Item, console: Console) -> None:
    """One paper, what each stage thinks of it, and the words of those who cite it."""
    paper = item.paper
    published = ", ".join(filter(None, [escape(paper.venue), str(paper.published)]))
    console.print(f"[bold]{item.rank:>3}  {escape(paper.title)}[/bold]  [dim]{escape(paper.id)}  {published}[/dim]")
    opinions = " → ".join(
        f"{STAGE_NAMES.get(one.stage, one.stage)} #{one.rank} ({one.score:.3f})" for one in item.stages
    )
    sure = "" if item.confidence is None else f"; confidence {item.confidence:.0%}"
    console.print(f"     {opinions}; prior {item.prior:.2f}; cited by {item.in_degree:,}{sure}")
    if item.contributions:
        shares = [f"{name} {value:+.2f}" for name, value in item.contributions.items() if abs(value) >= SHOWN_SHARE]
        console.print(f"     second phase: {', '.join(shares)}")
    if item.words:
        words = ", ".join(f"{escape(one.word)} {one.share:.0%}" for one in item.words)
        console.print(f"     words: {words}")
    for span in item.evidence:
        console.print(f"     [italic]“{escape(span.text)}”[/italic] [dim]{escape(span.citing_id)}[/dim]")


def print_degraded(degraded: tuple[Degradation, ...], console: Console) -> None:
    for one in degraded:
        console.print(f"[yellow]{one.reason}[/yellow]: {escape(one.message)}")
