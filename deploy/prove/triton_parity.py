"""Whether DAVINCI on a Triton server scores as it does in process, and how fast: triton_parity.py HOST:PORT."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from citewell.commands.stack import Stack, choose_ports
from citewell.reranker.v1 import reranker_pb2 as messages
from citewell.reranker.v1.reranker_pb2_grpc import RerankerServiceStub
from citewell.runtime.channels import open_channel

# The scores may differ by the arithmetic alone.
TOLERANCE = 1e-2
CANDIDATES, REPEATS = 100, 20


def request() -> messages.RerankRequest:
    made = messages.RerankRequest(
        context="For parsing we build on TARGETCIT.", title="Parsing in the wild", depth=CANDIDATES
    )
    for number in range(CANDIDATES):
        made.candidates.add(
            paper_id=f"p{number}", rank=number + 1, title=f"Parsing, part {number}", abstract="A grammar of words. " * 8
        )
    return made


async def scores(folder: Path, settings: dict[str, str]) -> tuple[dict[str, float], float]:
    """The scores by paper, and seconds a request in the middle of the repeats."""
    stack = Stack(folder, choose_ports(0), settings=settings)
    stack.start(["reranker"])
    try:
        stack.wait(["reranker"], seconds=300)
        channel = open_channel(stack.addresses["reranker"])
        stub, took = RerankerServiceStub(channel), []
        for _ in range(REPEATS):
            began = time.monotonic()
            answer = await stub.Rerank(request(), timeout=60)
            took.append(time.monotonic() - began)
        await channel.close()
    finally:
        stack.stop()
    return {each.paper_id: each.score for each in answer.papers}, sorted(took)[REPEATS // 2]


async def main(address: str) -> int:
    triton = {
        "CITEWELL_RERANKER__BACKEND": "triton",
        "CITEWELL_RERANKER__TRITON_ADDRESS": address,
        "CITEWELL_RERANKER__BATCH_TOKENS": "32768",
        "CITEWELL_RERANKER__BATCHES_IN_FLIGHT": "3",
    }
    with tempfile.TemporaryDirectory() as folder:
        here, slow = await scores(Path(folder) / "here", {})
        there, fast = await scores(Path(folder) / "there", triton)
    worst = max(abs(here[name] - there.get(name, float("inf"))) for name in here)
    print(f"{CANDIDATES} candidates: differ by at most {worst:.1e}; {slow:.3f} s in process, {fast:.3f} s on Triton")
    return 0 if len(here) == CANDIDATES and worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
