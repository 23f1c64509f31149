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

from citewell.commands.calls import channel_to, run
from citewell.commands.failing import fail
from citewell.commands.load import load
from citewell.commands.recommend import ask, print_answer
from citewell.commands.stack import Stack, StackError, choose_ports
from citewell.demo.corpus import write
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.channels import invoke
from citewell.scholarly.contexts import TARGET
from citewell.scholarly.dates import PartialDate
from citewell.types.messages import date_to_message
from citewell.types.v1 import publication_pb2

QUESTIONS = 3
SHOWN = 3
# Deep enough to hold a paper that a single new citation can lift visibly.
DEEP = 50
FROM_RANK = 15

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out context, and what its author cited there."""

    request: messages.RecommendRequest
    answers: frozenset[str]

    @staticmethod
    def of(record: dict[str, Any]) -> Question:
        query = messages.Query(context=record["context"], title=record["title"], abstract=record["abstract"])
        options = messages.Options(top_k=DEEP)
        options.filter.published_before.CopyFrom(date_to_message(PartialDate.parse(record["published_before"])))
        return Question(messages.RecommendRequest(query=query, options=options), frozenset(record["answers"]))


def demo(
    papers: Annotated[int, typer.Option(min=200, help="How many papers to invent.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Which world.")] = 7,
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
            load(folder / "corpus", split="train", data=folder, address=stack.addresses["profiler"])
            _questions(folder / "corpus" / "queries.jsonl", stack.addresses)
        except StackError as error:
            fail(str(error))
        finally:
            stack.stop()
    console.print(f"everything is stopped; {time.monotonic() - started:.0f} s in all")


def _questions(file: Path, addresses: dict[str, str]) -> None:
    with file.open(encoding="utf-8") as lines:
        drafts = groupby(map(json.loads, lines), key=itemgetter("citing_id"))
        chosen = [Question.of(next(places)) for _, places in islice(drafts, QUESTIONS)]
    for number, question in enumerate(chosen, 1):
        console.rule(f"Question {number} of {QUESTIONS}")
        console.print(f"[italic]{escape(question.request.query.context)}[/italic]\n")
        answer = run(ask(question.request, Path(), addresses["recommender"]), 60)
        right = [item.rank for item in answer.items if item.paper.id in question.answers]
        print_answer(_first(answer, SHOWN), console)
        console.print(
            f"what was cited there is at rank {right[0]}\n" if right else "what was cited there was not found\n"
        )
    console.rule("A publication changes an answer")
    _publish_and_ask_again(chosen[-1].request.query, addresses)


def _first(answer: messages.RecommendResponse, count: int) -> messages.RecommendResponse:
    shown = messages.RecommendResponse()
    shown.CopyFrom(answer)
    del shown.items[count:]
    return shown


def _publish_and_ask_again(query: messages.Query, addresses: dict[str, str]) -> None:
    request = messages.RecommendRequest(query=query, options=messages.Options(top_k=DEEP))
    items = run(ask(request, Path(), addresses["recommender"]), 60).items
    before = items[min(FROM_RANK, len(items)) - 1]
    request.options.min_watermark.append(run(_publish(query, before.paper.id, addresses["ingestion"]), 60))
    started = time.monotonic()
    items = run(ask(request, Path(), addresses["recommender"]), 60).items
    seconds = time.monotonic() - started
    console.print(f"a new paper says this of {escape(before.paper.id)}, at rank {before.rank} for the last question:\n")
    after = [item for item in items if item.paper.id == before.paper.id]
    if not after:
        fail(f"{before.paper.id} left the answer, though one more paper cites it")
    print_answer(messages.RecommendResponse(items=after), console)
    console.print(
        f"rank {before.rank} before, rank {after[0].rank} after; searchable and answered in {seconds:.2f} s\n"
    )


async def _publish(query: messages.Query, cited_id: str, address: str) -> str:
    """The token of a new paper that cites another where the question has its gap."""
    gap = query.context.index(TARGET)
    marker = publication_pb2.CitationMarker(offset=gap, length=len(TARGET), reference_ids=[cited_id])
    publication = publication_pb2.Publication(
        paper_id="demo-just-published",
        revision=1,
        title=query.title,
        abstract=query.abstract,
        published=date_to_message(PartialDate(2025, 7, 1)),
        passages=[publication_pb2.Passage(text=query.context, markers=[marker])],
    )
    async with channel_to("ingestion", address=address) as channel:
        request = ingestion_pb2.PublishRequest(publication=publication)
        answer = await invoke(IngestionServiceStub(channel).Publish, request, "publish")
        token: str = answer.token
        return token
