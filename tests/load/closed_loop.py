"""Callers that ask again as soon as they are answered, with the test contexts of a real data set.

    python -m tests.load.closed_loop --address 127.0.0.1:7300 --data $CITEWELL_DATA/neurips25 --in-flight 1 4

Prints latencies and, of the calls with one in flight, where their time went.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from tests.load.latencies import Latencies

DEADLINE = 30.0
SEED = 7


async def closed_loop(
    stub: RecommenderServiceStub, requests: Sequence[messages.RecommendRequest], calls: int, in_flight: int
) -> tuple[Latencies, list[messages.RecommendResponse]]:
    """Latencies of so many calls, and their answers."""
    latencies, answers = Latencies(), list[messages.RecommendResponse]()
    left = itertools.islice(itertools.cycle(requests), calls)

    async def caller() -> None:
        for request in left:
            started = time.monotonic()
            answers.append(await stub.Recommend(request, timeout=DEADLINE))
            latencies.record(time.monotonic() - started)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return latencies, answers


def queries(data: Path, count: int) -> Iterator[messages.Query]:
    """A seeded draw of the test contexts, as their writers would ask."""
    from citewell.lab.dataset import read_dataset

    whole = read_dataset(data)
    rows = np.random.default_rng(SEED).permutation(whole.contexts.of_split("test"))[:count]
    for row in rows.tolist():
        citing = int(whole.contexts.citing[row])
        papers = whole.papers
        yield messages.Query(
            context=whole.contexts.texts[row], title=papers.titles[citing], abstract=papers.abstracts[citing]
        )


async def measure(arguments: argparse.Namespace) -> None:
    """Prints the figures."""
    options = messages.Options(rerank=arguments.rerank, rerank_depth=arguments.depth)
    asked = [messages.RecommendRequest(query=each, options=options) for each in queries(arguments.data, 200)]
    async with open_channel(arguments.address) as channel:
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
    parser.add_argument("--address", required=True, help="host:port of a recommender")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set it was loaded with")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--calls", type=int, default=200, help="measured at each number in flight")
    parser.add_argument("--depth", type=int, default=0, help="candidates reranked; 0 is the service's default")
    parser.add_argument("--rerank", action=argparse.BooleanOptionalAction, default=True)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
