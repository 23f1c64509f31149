"""Tables of figures: for a terminal of 80 columns, or as Markdown, CSV or JSON for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from citewell.lab.bench_report import markdown_table


class Output(StrEnum):
    """How figures are printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


TheOutput = Annotated[Output, typer.Option("--output", "-o", help="How the figures are printed.")]


def console(output: Output) -> Console:
    """Where explanations go: beside a table for people, and out of the way of a table for programs."""
    return Console(highlight=False, stderr=output is not Output.TEXT)


def print_rows(header: Sequence[str], rows: Iterable[Sequence[str]], output: Output) -> None:
    """A table for people or as Markdown."""
    if output is Output.MARKDOWN:
        print(markdown_table(header, list(rows)))
        return
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line a figure, with the names of the columns first."""
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    print(written.getvalue(), end="")


def print_json(stated: object) -> None:
    print(json.dumps(stated, indent=1))
