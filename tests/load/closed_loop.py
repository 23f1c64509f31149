"""A closed-loop load test: callers send the next request after each answer, with the test contexts of a data set.

    python -m tests.load.closed_loop $CITEWELL_DATA/neurips25 --cache CACHE --in-flight 1 4

Starts five services over the set's train split, with the text vectors that the lab keeps in CACHE, or asks those at
--address. Prints latencies and, of the calls with one in flight, where their time went.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.commands.stack import Stack, choose_ports
from citewell.corpora.spilling import Corpus
from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.experiment import Encoding, vectors_of
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from citewell.scholarly.contexts import normalise
from citewell.scholarly.publications import Publication
from tests.load.latencies import Latencies
from tests.load.told import tell

DEADLINE = 30.0
SEED = 7


async def closed_loop(
    stub: RecommenderServiceStub, requests: Sequence[messages.RecommendRequest], calls: int, in_flight: int
) -> tuple[Latencies, list[messages.RecommendResponse]]:
    """The latencies of this many calls, and their answers."""
    latencies, answers = Latencies(), list[messages.RecommendResponse]()
    left = itertools.islice(itertools.cycle(requests), calls)

    async def caller() -> None:
        for request in left:
            started = time.monotonic()
            answers.append(await stub.Recommend(request, timeout=DEADLINE))
            latencies.record(time.monotonic() - started)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return latencies, answers


def queries(whole: Dataset, count: int) -> Iterator[messages.Query]:
    """A seeded sample of the test contexts as queries."""
    rows = np.random.default_rng(SEED).permutation(whole.contexts.of_split("test"))[:count]
    for row in rows.tolist():
        citing = int(whole.contexts.citing[row])
        papers = whole.papers
        yield messages.Query(
            context=whole.contexts.texts[row], title=papers.titles[citing], abstract=papers.abstracts[citing]
        )


def load(stack: Stack, arguments: argparse.Namespace, whole: Dataset) -> None:
    """Loads the papers and the train contexts into the services."""
    encoding = Encoding(paper_tokens=arguments.paper_tokens, context_tokens=arguments.context_tokens)
    vectors = vectors_of(whole, encoding, arguments.cache, lambda what, done, total: None)
    papers = zip(whole.papers.titles, whole.papers.abstracts, strict=True)
    row_of = {f"{normalise(title)}. {normalise(abstract)}": row for row, (title, abstract) in enumerate(papers)}
    texts = {normalise(text): row for row, text in enumerate(whole.contexts.texts)}

    def vector(text: str) -> NDArray[np.float32]:
        return vectors.papers[row_of[text]] if text in row_of else vectors.contexts[texts[normalise(text)]]

    corpus = Corpus(arguments.data, stack.data / "corpus.db", "train")
    corpus.spill(lambda: None)
    started = time.monotonic()
    publications = (one.event.body for one in corpus.publications())
    tell(stack.addresses, (one for one in publications if isinstance(one, Publication)), vector)
    print(f"{len(whole.papers):,} papers and their train contexts searchable in {time.monotonic() - started:.0f} s")
    corpus.close(forget=True)


async def measure(address: str, arguments: argparse.Namespace, whole: Dataset) -> None:
    """Prints the figures."""
    options = messages.Options(rerank=arguments.rerank, rerank_depth=arguments.depth)
    asked = [messages.RecommendRequest(query=each, options=options) for each in queries(whole, 200)]
    async with open_channel(address) as channel:
        stub = RecommenderServiceStub(channel)
        info = await stub.Info(messages.InfoRequest(), timeout=DEADLINE)
        print(f"rerank depth {arguments.depth or info.default_rerank_depth}: {info.speed_note}")
        await closed_loop(stub, asked, 10, 1)
        for in_flight in arguments.in_flight:
            latencies, answers = await closed_loop(stub, asked, arguments.calls, in_flight)
            degraded = Counter(one.reason for answer in answers for one in answer.degraded)
            print(f"{in_flight} in flight: {latencies.row()}; degraded: {dict(degraded) or 'none'}")
            if in_flight == 1:
                spent = defaultdict[str, list[float]](list)
                for timing in (one for answer in answers for one in answer.timings):
                    spent[timing.stage].append(1000 * timing.seconds)
                print("  " + ", ".join(f"{stage} p50 {np.median(each):.1f} ms" for stage, each in spent.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data set")
    parser.add_argument("--address", default="", help="host:port of a recommender that holds it already")
    parser.add_argument("--cache", type=Path, help="the lab's vectors: citewell evaluate ... --cache")
    parser.add_argument("--paper-tokens", type=int, default=0, help="of those vectors")
    parser.add_argument("--context-tokens", type=int, default=0, help="of those vectors")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--calls", type=int, default=200, help="measured at each number in flight")
    parser.add_argument("--depth", type=int, default=0, help="candidates reranked; 0 is the service's default")
    parser.add_argument("--rerank", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    whole = read_dataset(arguments.data)
    if arguments.address:
        asyncio.run(measure(arguments.address, arguments, whole))
        return
    if not arguments.cache:
        parser.error("--cache or --address is needed")
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        stack.start()
        try:
            stack.wait()
            load(stack, arguments, whole)
            asyncio.run(measure(stack.addresses["recommender"], arguments, whole))
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
