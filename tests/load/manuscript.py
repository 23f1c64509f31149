"""python -m tests.load.manuscript: a draft of 20 pages with 60 places against 60 calls of Recommend, in one run.

Then the draft is asked for again and cancelled half-way, and the recommender's own count tells what was still answered.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from pathlib import Path

from citewell.commands.stack import Stack, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.long_draft import long_draft
from tests.servers.metrics import scraped
from tests.servers.processes import free_ports, wait_until

DEADLINE = 600


def measure(client: Client, text: str, options: messages.Options) -> tuple[float, float, list[str]]:
    """Seconds to the first answer and to the last, and the contexts of the places."""
    started = time.monotonic()
    first = last = 0.0
    contexts = []
    for answer in client.recommender.RecommendManuscript(
        messages.RecommendManuscriptRequest(text=text, options=options, references=True), timeout=DEADLINE
    ):
        if answer.HasField("result"):
            assert answer.result.HasField("response"), answer.result.error
            last = time.monotonic() - started
            first = first or last
            contexts.append(answer.context)
    return first, last, contexts


def cancelled_half_way(client: Client, text: str, metrics_port: int) -> tuple[int, int]:
    """How many places had arrived when the call was cancelled, and how many were answered in all."""
    before = _answered(metrics_port)
    stream = client.recommender.RecommendManuscript(
        messages.RecommendManuscriptRequest(text=text, options=messages.Options(top_k=5, rerank=True)), timeout=DEADLINE
    )
    places = next(stream).outline.places
    arrived = sum(1 for _ in zip(range(places // 2), stream, strict=False))
    stream.cancel()
    counts = [-1.0, before]

    def rests() -> bool:
        counts.append(_answered(metrics_port))
        return counts[-1] == counts[-2]

    wait_until(rests, "no more places answered", seconds=60, every=3.0)
    return arrived, round(counts[-1] - before)


def _answered(metrics_port: int) -> float:
    """How many queries the recommender has answered."""
    return scraped(metrics_port).value("citewell_recommender_answers_total", strategy="HYBRID")


def main() -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as folder:
        metrics_port = free_ports(1)[0]
        settings = {"CITEWELL_RECOMMENDER__METRICS_PORT": str(metrics_port)}
        stack = Stack(Path(folder), choose_ports(0), settings=settings)
        stack.start()
        client = Client(stack.addresses)
        try:
            stack.wait()
            world = list(divided(300, 7))
            publish(client, [publication for publication, _ in world])
            text = long_draft([asked for _, some in world for asked in some])
            print(f"{platform.processor() or platform.machine()}; draft of {len(text):,} characters")
            for rerank in (False, True):
                options = messages.Options(top_k=5, rerank=rerank)
                measure(client, text, options)  # models and caches are warm for the draft and for the calls alike
                first, last, contexts = measure(client, text, options)
                times = []
                for context in contexts:
                    started = time.monotonic()
                    client.recommend(messages.Query(context=context, title="A long draft about many things"), options)
                    times.append(time.monotonic() - started)
                print(
                    f"rerank={rerank}: {len(contexts)} places; first answer {first:.2f} s, last {last:.2f} s; "
                    f"{len(times)} calls of Recommend one by one {sum(times):.2f} s "
                    f"(median {statistics.median(times):.3f} s); the draft takes {last / sum(times):.2f} of that"
                )
            arrived, answered = cancelled_half_way(client, text, metrics_port)
            print(f"cancelled after {arrived} of {len(contexts)} places: {answered} were answered in all, then none")
        finally:
            client.close()
            stack.stop()


if __name__ == "__main__":
    main()
