"""Asks and publishes at a low rate for a long time, and watches that nothing grows.

    python -m tests.load.soak --minutes 30 --rate 4 --picture deploy/docs/results/soak.svg

Notes memory, open files, threads and connections of every service. Fails if one of them grew from the second quarter
of the run to the last by more than allowed. The first quarter warms caches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from citewell.commands.stack import Stack
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.runtime.channels import open_channel
from tests.load.open_loop import Offered, connected, describe, offer, running_services
from tests.load.picture import picture
from tests.load.scenarios import MIXES, Scenario

NOTES = 200
"""Notes a run."""
ALLOWED: Mapping[str, tuple[float, float]] = {
    "MiB": (1.15, 48.0),
    "files": (1.05, 4.0),
    "threads": (1.05, 4.0),
    "connections": (1.05, 4.0),
}
"""What may grow, by a factor and by so much more. Publications make stores grow, and a store's log varies by 32 MiB."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a service held at a time."""

    minutes: float
    held: Mapping[str, float]


def note(process: psutil.Process, minutes: float) -> Note:
    with process.oneshot():
        return Note(
            minutes,
            {
                "MiB": process.memory_info().rss / 2**20,
                "files": process.num_fds(),
                "threads": process.num_threads(),
                "connections": len(process.net_connections("inet")),
            },
        )


def grown(notes: Mapping[str, Sequence[Note]]) -> list[str]:
    """What grew by more than allowed, one line each."""
    found = []
    for service, some in notes.items():
        quarter = len(some) // 4
        for what, (factor, more) in ALLOWED.items():
            early, late = (
                statistics.median(each.held[what] for each in part)
                for part in (some[quarter : 2 * quarter], some[-quarter:])
            )
            if late > factor * early + more:
                found.append(f"{service}: {what} grew from {early:.0f} to {late:.0f}")
    return found


async def watch(stack: Stack, seconds: float, notes: dict[str, list[Note]]) -> None:
    processes = {service: psutil.Process(process.pid) for service, process in stack.processes.items()}
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        for service, process in processes.items():
            notes[service].append(note(process, passed / 60))
        await asyncio.sleep(seconds / NOTES)


async def soak(
    stack: Stack, queries: list[messages.Query], arguments: argparse.Namespace
) -> tuple[Offered, dict[str, list[Note]]]:
    seconds = 60 * arguments.minutes
    notes: dict[str, list[Note]] = defaultdict(list)
    async with (
        await connected(stack.addresses["recommender"]) as channel,
        open_channel(stack.addresses["ingestion"]) as publishing,
    ):
        requests = iter(Scenario(arguments.mix, queries, channel, publishing, deadline=30.0))
        offered, _ = await asyncio.gather(offer(requests, arguments.rate, seconds), watch(stack, seconds, notes))
    return offered, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--papers", type=int, default=1000, help="size of the demo world")
    parser.add_argument("--mix", choices=sorted(MIXES), default="mixed")
    parser.add_argument("--picture", type=Path, help="where to write memory and open files as SVG")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_services(arguments.papers, Path(folder)) as (stack, queries):
        offered, notes = asyncio.run(soak(stack, queries, arguments))
    describe(offered)
    for service, some in notes.items():
        shown = ", ".join(f"{what} {some[0].held[what]:.0f} → {some[-1].held[what]:.0f}" for what in ALLOWED)
        print(f"  {service:12} {shown}")
    if arguments.picture:
        lines = [(service, [(each.minutes, each.held["MiB"]) for each in some]) for service, some in notes.items()]
        arguments.picture.write_text(picture(f"Memory, {arguments.mix}, {arguments.rate:g}/s", "minutes", "MiB", lines))
    if failed := grown(notes):
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
