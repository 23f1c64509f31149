"""`citewell demo`: five services, an invented corpus, three questions, one publication that changes an answer."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from citewell.client import Citewell, Options, Publication, Query, SearchFilter
from citewell.commands.asking import print_item
from citewell.commands.calls import Target
from citewell.commands.failing import fail
from citewell.commands.load import LOAD_SECONDS, load_corpus
from citewell.commands.recommend import print_answer
from citewell.commands.stack import Stack, StackError, choose_ports
from citewell.demo.corpus import write
from citewell.scholarly.contexts import TARGET, CitationMarker, Passage
from citewell.scholarly.dates import PartialDate

QUESTIONS = 3
SHOWN = 3
# Deep enough to hold a paper that a single new citation can lift visibly.
DEEP = 50
FROM_RANK = 15

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out context, and what its author cited there."""

    query: Query
    options: Options
    answers: frozenset[str]

    @staticmethod
    def of(record: dict[str, Any]) -> Question:
        query = Query(record["context"], record["title"], record["abstract"])
        before = SearchFilter(published_before=PartialDate.parse(record["published_before"]))
        return Question(query, Options(top_k=DEEP, filter=before), frozenset(record["answers"]))


def demo(
    papers: Annotated[int, typer.Option(min=200, help="How many papers to invent.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed and number invent the same corpus.")] = 7,
) -> None:
    """Starts everything in a temporary folder, loads an invented corpus, asks, publishes, asks again, stops all."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="citewell-demo-") as temporary:
        folder = Path(temporary)
        stack = Stack(folder / "services", choose_ports(0))
        try:
            console.rule("Five services")
            stack.start()
            written = write(papers, seed, folder / "corpus")
            console.print(
                f"meanwhile {written.papers:,} papers and {written.contexts:,} citation contexts were invented"
            )
            stack.wait()
            for service, address in stack.addresses.items():
                console.print(f"{service:<12} {address} serving")
            console.rule("A corpus")
            target = Target(folder, stack.addresses["profiler"], timeout=LOAD_SECONDS)
            console.print(load_corpus(target, folder / "corpus", "train"))
            addresses = stack.addresses
            with Citewell(addresses["recommender"], ingestion=addresses["ingestion"], timeout=60.0) as citewell:
                _questions(folder / "corpus" / "queries.jsonl", citewell)
        except StackError as error:
            fail(str(error))
        finally:
            stack.stop()
    console.print(f"everything is stopped; {time.monotonic() - started:.0f} s in all")


def _questions(file: Path, citewell: Citewell) -> None:
    with file.open(encoding="utf-8") as lines:
        drafts = groupby(map(json.loads, lines), key=itemgetter("citing_id"))
        chosen = [Question.of(next(places)) for _, places in islice(drafts, QUESTIONS)]
    for number, question in enumerate(chosen, 1):
        console.rule(f"Question {number} of {QUESTIONS}")
        console.print(f"[italic]{escape(question.query.context)}[/italic]\n")
        answer = citewell.recommend(question.query, question.options)
        print_answer(answer, console, SHOWN)
        right = [item.rank for item in answer.items if item.paper.id in question.answers]
        console.print(f"what was cited there is {f'at rank {right[0]}' if right else 'not among them'}\n")
    console.rule("A publication changes an answer")
    _publish_and_ask_again(chosen[-1].query, citewell)


def _publish_and_ask_again(query: Query, citewell: Citewell) -> None:
    items = citewell.recommend(query, Options(top_k=DEEP)).items
    before = items[min(FROM_RANK, len(items)) - 1]
    receipt = citewell.publish(_citing(query, before.paper.id))
    started = time.monotonic()
    items = citewell.recommend(query, Options(top_k=DEEP, min_watermark=(receipt.token,))).items
    seconds = time.monotonic() - started
    console.print(f"a new paper says this of {escape(before.paper.id)}, at rank {before.rank} for the last question:\n")
    after = next((item for item in items if item.paper.id == before.paper.id), None)
    if after is None:
        fail(f"{before.paper.id} left the answer, though one more paper cites it")
    print_item(after, console)
    console.print(f"rank {before.rank} before, rank {after.rank} after; searchable and answered in {seconds:.2f} s\n")


def _citing(query: Query, cited_id: str) -> Publication:
    """A new paper that cites another where the question has its gap."""
    marker = CitationMarker(query.context.index(TARGET), len(TARGET), (cited_id,))
    return Publication(
        paper_id="demo-just-published",
        revision=1,
        title=query.title,
        abstract=query.abstract,
        published=PartialDate(2025, 7, 1),
        passages=(Passage(query.context, (marker,)),),
    )
