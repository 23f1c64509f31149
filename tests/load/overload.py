"""What services do when more is asked of them than they can answer.

    python -m tests.load.overload --mix reranked --seconds 20

Measures the capacity with a few callers, the usual latency at half of it, then offers three times the capacity, and
watches how soon the usual latency is back. Memory is that of all services together.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from citewell.commands.stack import Stack
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.load.open_loop import Offered, connected, describe, offer, running_services
from tests.load.scenarios import MIXES, Due, Scenario

CALLERS = 3
USUAL_SHARE, OVERLOAD = 0.5, 3.0
LOOK_SECONDS = 1.0
REFUSED_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
NOTICEABLE_SECONDS = 0.5
"""A p99 below this counts as usual in any case: a short pause of the machine is no overload."""
# On a slow machine an overload lasts longer than asked, because a handful of requests overloads nothing.
LEAST_REQUESTS = 40


@dataclass(frozen=True, slots=True)
class Overload:
    """What was measured."""

    capacity: float
    """Answers a second to a few callers that always wait for an answer."""
    usual: Offered
    overloaded: Offered
    recovered: float
    """Seconds after the overload until all was answered again, within twice the usual p99 or NOTICEABLE_SECONDS."""
    bytes_before: int
    bytes_after: int


async def capacity_of(requests: Iterator[Due], seconds: float) -> float:
    """Answers a second in a closed loop."""
    answered, end = 0, time.monotonic() + seconds

    async def caller() -> None:
        nonlocal answered
        while time.monotonic() < end:
            try:
                await next(requests).call()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(REFUSED_SECONDS)
            else:
                answered += 1

    started = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return answered / (time.monotonic() - started)


async def overload(stack: Stack, queries: list[messages.Query], mix: str, seconds: float) -> Overload:
    """Measures before, during and after."""
    async with await connected(stack.addresses["recommender"]) as channel:
        requests = iter(Scenario(mix, queries, channel, None, deadline=20.0))
        await capacity_of(requests, seconds / 2)  # warms caches
        capacity = await capacity_of(requests, seconds)
        usual = await offer(requests, USUAL_SHARE * capacity, seconds)
        before = memory(stack)
        rate = OVERLOAD * capacity
        overloaded = await offer(requests, rate, max(seconds, LEAST_REQUESTS / rate))
        after, ended = memory(stack), time.monotonic()
        while True:
            again = await offer(requests, USUAL_SHARE * capacity, max(LOOK_SECONDS, 2 / capacity))
            slow = again.latencies.percentile(99) > max(2 * usual.latencies.percentile(99), NOTICEABLE_SECONDS)
            if again.answered == again.endings.total() and not slow:
                break
            if time.monotonic() - ended > PATIENCE_SECONDS:
                raise TimeoutError(f"not recovered after {PATIENCE_SECONDS:.0f} s: {dict(again.endings)}")
        return Overload(capacity, usual, overloaded, time.monotonic() - ended, before, after)


def memory(stack: Stack) -> int:
    """Resident bytes of all services."""
    return sum(psutil.Process(process.pid).memory_info().rss for process in stack.processes.values())


def report(measured: Overload) -> None:
    print(f"capacity with {CALLERS} callers: {measured.capacity:.1f}/s")
    for name, offered in (("usual", measured.usual), ("overloaded", measured.overloaded)):
        print(f"{name}: ", end="")
        describe(offered)
    print(f"recovered after {measured.recovered:.1f} s")
    print(f"memory {measured.bytes_before >> 20} MiB before, {measured.bytes_after >> 20} MiB after the overload")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=1000, help="size of the demo world")
    parser.add_argument("--mix", choices=sorted(set(MIXES) - {"mixed"}), default="reranked")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each phase")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_services(arguments.papers, Path(folder)) as (stack, queries):
        measured = asyncio.run(overload(stack, queries, arguments.mix, arguments.seconds))
    report(measured)


if __name__ == "__main__":
    main()
