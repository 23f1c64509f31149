"""An open-loop load test: requests arrive at a constant rate, whether or not earlier ones were answered.

    python -m tests.load.open_loop                        # finds the knee of retrieval on this machine
    python -m tests.load.open_loop --mix mixed --seconds 60 --picture knee.svg
    python -m tests.load.open_loop --rate 20 --mix reranked
    python -m tests.load.open_loop --address recommender:7300 --ingestion ingestion:7304 --mix mixed

Each latency counts from the time when its request was due, so that a stall delays all requests that fall into it
(without that, a load test hides stalls: "coordinated omission"). Starts services over a demo world of its own, or asks
those at --address. Without --rate it raises the rate step by step until the services no longer keep up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from citewell import __version__
from citewell.commands.stack import Stack, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from tests.demo_world import divided
from tests.load.knee import Step, find_knee, table
from tests.load.latencies import Latencies
from tests.load.picture import latency_picture
from tests.load.scenarios import MIXES, Due, Scenario
from tests.load.told import WordVectors, tell

OK, REFUSED = "OK", "refused"
NO_RETRY_INFO = "refused without RetryInfo"


@dataclass
class Offered:
    """What became of the requests of one run."""

    rate: float
    seconds: float
    latencies: Latencies = field(default_factory=Latencies)
    """Of answered requests, from when they were due."""
    by_kind: dict[str, Latencies] = field(default_factory=lambda: defaultdict(Latencies))
    endings: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """Who refused, as the messages say."""

    @property
    def answered(self) -> int:
        return self.endings[OK]

    @property
    def refused(self) -> int:
        return self.endings[REFUSED]

    @property
    def failed(self) -> int:
        """Requests that were neither answered nor refused properly."""
        return self.endings.total() - self.answered - self.refused

    def step(self) -> Step:
        total = max(self.endings.total(), 1)
        return Step(
            self.rate,
            self.answered / self.seconds,
            self.latencies.percentile(50),
            self.latencies.percentile(99),
            (total - self.answered) / total,
        )


async def offer(requests: Iterator[Due], rate: float, seconds: float) -> Offered:
    """Sends requests at evenly spaced times. Returns when the last one has ended."""
    offered = Offered(rate, seconds)

    async def one(request: Due, due: float) -> None:
        try:
            await request.call()
        except grpc.aio.AioRpcError as error:
            offered.endings[_ending(error)] += 1
            offered.refusals[(error.details() or "").partition(":")[0]] += 1
            return
        took = time.monotonic() - due
        offered.latencies.record(took)
        offered.by_kind[request.kind].record(took)
        offered.endings[OK] += 1

    calls = []
    started = time.monotonic()
    for number, request in enumerate(itertools.islice(requests, max(1, int(rate * seconds)))):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.create_task(one(request, due)))
    await asyncio.gather(*calls)
    offered.seconds = max(seconds, time.monotonic() - started)
    return offered


def _ending(error: grpc.aio.AioRpcError) -> str:
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return error.code().name
    status = rpc_status.from_call(error)
    told = status is not None and any(each.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for each in status.details)
    return REFUSED if told else NO_RETRY_INFO


@contextmanager
def running_services(papers: int, folder: Path) -> Iterator[tuple[Stack, list[messages.Query]]]:
    """Services over a demo world, and queries for it."""
    world = list(divided(papers, 7))
    stack = Stack(folder, choose_ports(0))
    services = ("index", "profiler", "reranker", "ingestion", "recommender")
    try:
        stack.start(services)
        stack.wait(services)
        tell(stack.addresses, (publication for publication, _ in world), WordVectors(384))
        yield stack, [asked.query for _, some in world for asked in some]
    finally:
        stack.stop()


async def connected(address: str) -> grpc.aio.Channel:
    channel = open_channel(address)
    await RecommenderServiceStub(channel).Info(messages.InfoRequest(), timeout=30)
    return channel


def describe(offered: Offered) -> None:
    print(f"offered {offered.rate:g}/s, answered {offered.answered / offered.seconds:.1f}/s")
    for kind, latencies in sorted(offered.by_kind.items()):
        print(f"  {kind:12} {latencies.row()}")
    print("  ended: " + ", ".join(f"{ending} {count}" for ending, count in offered.endings.most_common()))


async def measure(
    recommender: str, ingestion: str, queries: list[messages.Query], arguments: argparse.Namespace
) -> None:
    async with await connected(recommender) as channel, open_channel(ingestion or recommender) as publishing:
        scenario = Scenario(arguments.mix, queries, channel, publishing if ingestion else None, arguments.deadline)
        requests = iter(scenario)
        await offer(requests, 2.0, 3.0)  # warms caches
        if arguments.rate:
            offered = await offer(requests, arguments.rate, arguments.seconds)
            describe(offered)
            if arguments.histogram:
                arguments.histogram.write_text(offered.latencies.distribution())
            return

        async def step(rate: float) -> Step:
            offered = await offer(requests, rate, arguments.seconds)
            describe(offered)
            return offered.step()

        knee = await find_knee(step, first=arguments.first)
        print(f"\nmix {arguments.mix}\n{table(knee)}")
        if arguments.picture:
            arguments.picture.write_text(latency_picture(f"{arguments.mix}: latency by offered rate", knee))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="", help="host:port of a recommender that runs already")
    parser.add_argument("--ingestion", default="", help="host:port of its ingestion service, for mixes that publish")
    parser.add_argument("--papers", type=int, default=1000, help="size of the demo world")
    parser.add_argument("--mix", choices=sorted(MIXES), default="retrieval")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; 0 = find the knee")
    parser.add_argument("--first", type=float, default=2.0, help="rate of the first step, in requests a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each step")
    parser.add_argument("--deadline", type=float, default=5.0, help="of each request, in seconds")
    parser.add_argument("--picture", type=Path, help="where to write the knee as SVG")
    parser.add_argument("--histogram", type=Path, help="with --rate: where to write all percentiles")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"citewell {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    if arguments.address:
        queries = [asked.query for _, some in divided(arguments.papers, 7) for asked in some]
        asyncio.run(measure(arguments.address, arguments.ingestion, queries, arguments))
        return
    with tempfile.TemporaryDirectory() as folder, running_services(arguments.papers, Path(folder)) as (stack, queries):
        asyncio.run(measure(stack.addresses["recommender"], stack.addresses["ingestion"], queries, arguments))


if __name__ == "__main__":
    main()
