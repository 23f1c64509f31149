"""An open-loop load test of Recommend: requests arrive at a fixed rate, whether or not earlier ones were answered.

    python -m tests.load.open_loop --rate 20 --seconds 15

Each latency counts from the time when its request was due, so that a stall delays all requests that fall into it.
Starts five services over a demo world of its own, or asks those at --address.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import grpc

from citewell.commands.stack import Stack, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
from citewell.runtime.channels import open_channel
from tests.demo_world import divided
from tests.load.latencies import Latencies
from tests.load.told import WordVectors, tell


async def offer(
    address: str, requests: Iterable[messages.RecommendRequest], rate: float, seconds: float, deadline: float
) -> tuple[Latencies, Counter[str]]:
    """Latencies of answered calls, and the status of all calls; arrivals are evenly spaced."""
    latencies, endings = Latencies(), Counter[str]()
    channel = open_channel(address)
    stub = RecommenderServiceStub(channel)
    await stub.Info(messages.InfoRequest(), timeout=deadline)  # connected
    started = time.monotonic()

    async def one(request: messages.RecommendRequest, due: float) -> None:
        try:
            answer = await stub.Recommend(request, timeout=deadline)
        except grpc.aio.AioRpcError as error:
            endings[error.code().name] += 1
            return
        latencies.record(time.monotonic() - due)
        endings["OK, degraded" if answer.degraded else "OK"] += 1

    calls = []
    for number, request in enumerate(itertools.islice(requests, int(rate * seconds))):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.create_task(one(request, due)))
    await asyncio.gather(*calls)
    await channel.close()
    return latencies, endings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="", help="host:port of a recommender that runs already")
    parser.add_argument("--papers", type=int, default=1000, help="size of the demo world")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--deadline", type=float, default=2.0, help="of each request, in seconds")
    parser.add_argument("--rerank", action="store_true")
    arguments = parser.parse_args()
    world = list(divided(arguments.papers, 7))
    options = messages.Options(rerank=arguments.rerank)
    requests = [messages.RecommendRequest(query=asked.query, options=options) for _, some in world for asked in some]
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        address = arguments.address
        try:
            if not address:
                stack.start()
                stack.wait()
                tell(stack.addresses, (publication for publication, _ in world), WordVectors(384))
                address = stack.addresses["recommender"]
            load = offer(address, itertools.cycle(requests), arguments.rate, arguments.seconds, arguments.deadline)
            latencies, endings = asyncio.run(load)
        finally:
            stack.stop()
    print(f"offered {arguments.rate:g}/s for {arguments.seconds:g} s, deadline {arguments.deadline:g} s")
    print(f"answered: {latencies.row()}")
    print("ended: " + ", ".join(f"{ending} {count}" for ending, count in endings.most_common()))


if __name__ == "__main__":
    main()
