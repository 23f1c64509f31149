"""Publications through Kafka and PostgreSQL: throughput with one and two workers, lag under a burst, memory.

    python -m tests.load.kafka_feed --burst 1000 --rounds 3

Vectors are supplied, so that the encoder plays no part. Broker, database and services start on this machine, which they
share with the publisher. Each round is a burst; a worker's memory is shown after each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from citewell import __version__
from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.v1 import ingestion_pb2 as messages
from citewell.ingestion.v1.ingestion_pb2_grpc import IngestionServiceStub
from citewell.profiler.v1 import profile_query_pb2
from citewell.profiler.v1.profile_query_pb2_grpc import ProfileQueryServiceStub
from citewell.runtime.channels import open_channel
from tests.load.publish_latency import SERVICES, Publisher, Watch, all_searchable, publish_all
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics
from tests.servers.postgres import PostgresServer

PARTITIONS = 4
LOOK_SECONDS = 0.5


async def measure(stack: Stack, arguments: argparse.Namespace, workers: int) -> None:
    channels = {service: open_channel(stack.addresses[service]) for service in ("profiler", "ingestion")}
    info = await ProfileQueryServiceStub(channels["profiler"]).Info(profile_query_pb2.InfoRequest())
    stub, publisher = IngestionServiceStub(channels["ingestion"]), Publisher(info.encoder, arguments.references)
    for _ in range(arguments.rounds):
        requests = list(publisher.publications(arguments.burst))
        watch, started = Watch(stack), time.monotonic()
        looking = asyncio.create_task(_highest_lag(stub))
        tokens = await publish_all(stub, requests)
        accepted = time.monotonic() - started
        await all_searchable(stub, channels["profiler"], tokens)
        took = time.monotonic() - started
        looking.cancel()
        citations = sum(len(request.publication.masked_contexts) for request in requests)
        print(
            f"{workers} worker{'s' * (workers > 1)}: accepted {arguments.burst / accepted:6.0f}/s, "
            f"searchable {arguments.burst / took:5.0f} publications/s {citations / took:6.0f} citations/s, "
            f"highest lag {_highest[0]:5d}, ms of processor a publication {watch.row(arguments.burst)}, "
            f"ingestion holds {psutil.Process(stack.processes['ingestion'].pid).memory_info().rss / 2**20:.1f} MiB"
        )
    for channel in channels.values():
        await channel.close()


_highest = [0]


async def _highest_lag(stub: IngestionServiceStub) -> None:
    _highest[0] = 0
    while True:
        told = await stub.Info(messages.InfoRequest(), timeout=30)
        _highest[0] = max(_highest[0], sum(each.end_offset - each.committed_offset for each in told.partitions))
        await asyncio.sleep(LOOK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", type=int, default=1000, help="publications sent at once")
    parser.add_argument("--rounds", type=int, default=3, help="bursts, one after the other")
    parser.add_argument("--references", type=int, default=20)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"citewell {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder = Path(name)
        broker, postgres = KafkaBroker(folder / "broker"), PostgresServer()
        ends.callback(broker.kill)
        ends.callback(postgres.remove)
        broker.start()
        postgres.start()
        for workers in (1, 2):
            log = fresh_topics(broker, PARTITIONS).model_dump(mode="json", exclude_defaults=True)
            settings = {
                "CITEWELL_INGESTION__LOG__KIND": "kafka",
                **{f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in log.items()},
                "CITEWELL_PROFILER__LEDGER_URL": postgres.fresh_database(),
            }
            stack = Stack(folder / f"{workers}", choose_ports(0), cluster=True, settings=settings)
            others = {**settings, "CITEWELL_INGESTION__PROFILER_ADDRESS": stack.addresses["profiler"]}
            more = [Stack(folder / f"{workers}-{each}", choose_ports(0), True, others) for each in range(1, workers)]
            try:
                stack.start(SERVICES)
                stack.wait(SERVICES)
                for other in more:
                    other.start(["ingestion"])
                    other.wait(["ingestion"])
                asyncio.run(measure(stack, arguments, workers))
            finally:
                for other in more:
                    other.stop(["ingestion"])
                stack.stop(reversed(SERVICES))


if __name__ == "__main__":
    main()
