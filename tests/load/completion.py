"""python -m tests.load.completion [--data FOLDER]: how long Neovim waits for 50 completions, without and with reranker.

Without --data it starts services with an invented corpus. Neovim sends a request, waits for its answer, and goes on
to the next place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from citewell.commands.stack import Stack, State, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.demo_world import divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish

SCRIPT = Path(__file__).with_name("completions.lua")
COMPLETIONS = 50


def draft_of(contexts: list[str]) -> str:
    """A draft with an empty citation in each paragraph."""
    paragraphs = [context.replace("OTHERCIT", "others").replace("TARGETCIT", "\\cite{}") for context in contexts]
    return "\\begin{document}\n" + "\n\n".join(paragraphs) + "\n\\end{document}\n"


def complete(draft: Path, address: str, *options: str) -> tuple[list[float], list[int]]:
    """Milliseconds of each completion, and how many papers it offered."""
    server = [sys.executable, "-m", "citewell.cli", "lsp", "--address", address, *options]
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-u", "NONE", "-c", f"luafile {SCRIPT}", "-c", "qa!"],
        env={**os.environ, "CITEWELL_LSP": json.dumps(server), "CITEWELL_DRAFT": str(draft)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = json.loads((done.stdout + done.stderr).strip().splitlines()[-1])
    return told["times"], told["counts"]


@contextmanager
def _address(data: Path | None) -> Iterator[str]:
    """The recommender of running services, or of services with an invented corpus."""
    if data is not None:
        state = State.read(data)
        if state is None:
            raise SystemExit(f"no services run over {data}")
        yield state.addresses["recommender"]
        return
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), choose_ports(0))
        stack.start()
        try:
            stack.wait()
            client = Client(stack.addresses)
            publish(client, [publication for publication, _ in divided(300, 7)])
            client.recommend(messages.Query(title="warm"), messages.Options())
            client.close()
            yield stack.addresses["recommender"]
        finally:
            stack.stop()


def main() -> None:
    """Prints a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, help="data folder of running services")
    told = options.parse_args()
    contexts = [asked.query.context for _, some in divided(800, 7) for asked in some]
    with tempfile.TemporaryDirectory() as folder, _address(told.data) as address:
        draft = Path(folder) / "draft.tex"
        draft.write_text(draft_of(contexts[: COMPLETIONS + 1]))
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Neovim, milliseconds")
        for words in ([], ["--rerank"]):
            times, counts = complete(draft, address, *words)
            p50, p95 = np.percentile(times, (50, 95))
            print(
                f"citewell lsp {' '.join(words):<12} {len(times)} completions, {sum(map(bool, counts))} with papers: "
                f"p50 {p50:.0f}, p95 {p95:.0f}, most {max(times):.0f}"
            )


if __name__ == "__main__":
    main()
