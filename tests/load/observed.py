"""Draws what an operator sees: the dashboards with the data of a real Prometheus, and one trace of real spans.

    python -m tests.load.observed --out deploy/docs/results

Five services answer and publish for a minute; the reranker is killed in the middle and comes back. Grafana itself
is not needed: the panels' own queries are asked, and drawn by matplotlib.
"""

from __future__ import annotations

import argparse
import html
import itertools
import json
import secrets
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import matplotlib.pyplot as plt

from citewell.commands.stack import SERVICES, Stack, choose_ports
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.publications import Publication
from tests.demo_world import Asked, divided
from tests.e2e.client import Client
from tests.e2e.conftest import publish
from tests.servers.otlp import CollectedSpan, Collector
from tests.servers.processes import free_ports, wait_until
from tests.servers.prometheus import ALERTS, Prometheus

WINDOW = "5s"
COLOURS = {
    "recommender": "#4c72b0",
    "profiler": "#55a868",
    "index": "#c44e52",
    "reranker": "#8172b3",
    "ingestion": "#ccb974",
}
WIDTH, ROW, LEFT = 1100, 20, 430


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long services are asked")
    arguments = parser.parse_args()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        collector = ends.enter_context(Collector())
        ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        told = {f"CITEWELL_{name.upper()}__METRICS_PORT": str(port) for name, port in ports.items()}
        stack = Stack(folder / "data", choose_ports(0), settings=told | collector.settings)
        ends.callback(stack.stop)
        stack.start()
        stack.wait()
        client = Client(stack.addresses)
        ends.callback(client.close)
        world = list(divided(300, 7))
        publish(client, [publication for publication, _ in world])
        asked = [asked for _, some in world for asked in some]
        prometheus = ends.enter_context(Prometheus(folder / "prometheus", ports))
        began = time.time()
        _work(stack, asked, arguments.seconds)
        for dashboard in sorted((ALERTS.parent / "dashboards").glob("*.json")):
            draw_dashboard(
                prometheus, json.loads(dashboard.read_text()), began, arguments.out / f"{dashboard.stem}.png"
            )
        draw_trace(_publication(client, collector), arguments.out / "trace-publication.svg")
        draw_trace(_answer(client, collector, asked[0]), arguments.out / "trace-answer.svg")


def _work(stack: Stack, asked: list[Asked], seconds: float) -> None:
    """Asks and publishes; kills the reranker after a third of the time."""
    over = threading.Event()

    def ask() -> None:
        client = Client(stack.addresses)
        for each in itertools.takewhile(lambda _: not over.is_set(), itertools.cycle(asked)):
            with suppress(grpc.RpcError):
                client.recommend(each.query)
        client.close()

    def tell() -> None:
        client = Client(stack.addresses)
        while not over.wait(0.2):
            title = f"Told {secrets.token_hex(4)}"
            client.publish(Publication("contradicted" if secrets.randbelow(20) == 0 else title, 1, title))
        client.close()

    threads = [threading.Thread(target=work) for work in (ask, ask, tell)]
    for thread in threads:
        thread.start()
    over.wait(seconds / 3)
    stack.kill("reranker")
    over.wait(seconds / 3)
    stack.start(["reranker"])
    over.wait(seconds / 3)
    over.set()
    for thread in threads:
        thread.join()


def draw_dashboard(prometheus: Prometheus, dashboard: dict[str, Any], began: float, path: Path) -> None:
    """Every panel at its place, with its own queries."""
    rows = max(panel["gridPos"]["y"] for panel in dashboard["panels"]) // 8 + 1
    figure = plt.figure(figsize=(15, 3.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        axis = figure.add_subplot(grid[place["y"] // 8, place["x"] : place["x"] + place["w"]])
        axis.set_title(f"{panel['title']} [{panel['fieldConfig']['defaults']['unit']}]", fontsize=9)
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", WINDOW)
            for series in prometheus.over_time(query, began, time.time(), 1.0):
                label = target["legendFormat"]
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value.rpartition(".")[2])
                points = [(float(at) - began, float(value)) for at, value in series["values"]]
                axis.plot(*zip(*points, strict=True), label=label, linewidth=1)
        axis.tick_params(labelsize=7)
        if axis.lines:
            axis.legend(fontsize=6, loc="upper left")
            axis.set_ylim(bottom=0)
    figure.suptitle(f"{dashboard['title']} (seconds since the start; the reranker is gone in the second third)")
    figure.savefig(path, dpi=70)
    plt.close(figure)


def _publication(client: Client, collector: Collector) -> list[CollectedSpan]:
    trace_id = secrets.token_hex(16)
    body = Publication(f"traced-{trace_id}", 1, "A traced paper")
    client.settled(client.publish(body, traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01").token)
    wait_until(lambda: any(span.name.endswith("/Upsert") for span in collector.trace(trace_id)), "the last span")
    time.sleep(1)  # spans of the outer calls end last
    return collector.trace(trace_id)


def _answer(client: Client, collector: Collector, asked: Asked) -> list[CollectedSpan]:
    trace_id = secrets.token_hex(16)
    client.recommend(asked.query, messages.Options(), traceparent=f"00-{trace_id}-{secrets.token_hex(8)}-01")
    wait_until(lambda: any(span.name.endswith("/Recommend") for span in collector.trace(trace_id)), "the last span")
    time.sleep(1)
    return collector.trace(trace_id)


def draw_trace(spans: list[CollectedSpan], path: Path) -> None:
    """A bar for each span, under its parent."""
    first, last = min(span.start for span in spans), max(span.end for span in spans)
    scale = (WIDTH - LEFT - 70) / max(1, last - first)
    by_id = {span.span_id: span for span in spans}
    lines = []
    for number, span in enumerate(_in_order(spans)):
        depth, parent = 0, by_id.get(span.parent_id)
        while parent is not None:
            depth, parent = depth + 1, by_id.get(parent.parent_id)
        service = span.service.removeprefix("citewell-")
        name = f"{service}: {span.name.rpartition('.')[2]} ({span.kind.lower()})"
        top, x = 10 + ROW * number, LEFT + (span.start - first) * scale
        width = max(1.5, (span.end - span.start) * scale)
        milliseconds = (span.end - span.start) / 1e6
        lines.append(f'<text x="{8 + 10 * depth}" y="{top + 13}">{html.escape(name)}</text>')
        lines.append(
            f'<rect x="{x:.1f}" y="{top + 2}" width="{width:.1f}" height="{ROW - 6}" fill="{COLOURS[service]}"/>'
        )
        lines.append(f'<text x="{x + width + 4:.1f}" y="{top + 13}" fill="#555">{milliseconds:.1f} ms</text>')
    height = 20 + ROW * len(spans)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(lines)
        + "\n</svg>\n"
    )


def _in_order(spans: list[CollectedSpan]) -> list[CollectedSpan]:
    """Parents before their children, siblings by start."""
    known = {span.span_id for span in spans}
    done: list[CollectedSpan] = []

    def add(parent: str, roots: bool = False) -> None:
        for span in spans:
            if span.parent_id == parent or (roots and span.parent_id not in known):
                done.append(span)
                add(span.span_id)

    add("", roots=True)
    return done


if __name__ == "__main__":
    main()
