"""`citewell topics`: the Kafka topics of the cluster set-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, KafkaTimeoutError

from citewell.commands.failing import fail
from citewell.ingestion.logs.kafka.calls import translated
from citewell.ingestion.logs.kafka.topics import Topic, differences, mend, wanted_topics
from citewell.ingestion.settings import IngestionSettings
from citewell.runtime.settings import read_settings

app = typer.Typer(no_args_is_help=True, help="The topics on the broker that CITEWELL_INGESTION__LOG__KAFKA__* names.")

Partitions = Annotated[
    int, typer.Option(min=1, help="Partitions of the events' topic. Their number cannot change while it holds events.")
]
Replication = Annotated[int, typer.Option(min=1, help="How many brokers keep each partition.")]


@app.command()
def apply(partitions: Partitions = 12, replication: Replication = 3) -> None:
    """Creates missing topics and corrects the settings of existing ones."""
    with _broker(partitions, replication) as (admin, topics):
        for line in mend(admin, topics):
            typer.echo(line)
        _report(differences(admin, topics))


@app.command()
def check(partitions: Partitions = 12, replication: Replication = 3) -> None:
    """Reports wrong topics, partitions, replication, retention and compaction; changes nothing."""
    with _broker(partitions, replication) as (admin, topics):
        _report(differences(admin, topics))


@contextmanager
def _broker(partitions: int, replication: int) -> Iterator[tuple[KafkaAdminClient, list[Topic]]]:
    settings = read_settings(IngestionSettings).log.kafka
    try:
        try:
            admin = KafkaAdminClient(**settings.client())
        except KafkaTimeoutError:
            fail(
                f"no broker answers at {settings.bootstrap_servers} (CITEWELL_INGESTION__LOG__KAFKA__BOOTSTRAP_SERVERS)"
            )
        try:
            yield admin, wanted_topics(settings, partitions, replication)
        finally:
            admin.close()
    except KafkaError as error:
        raise translated(error) from error


def _report(found: list[str]) -> None:
    if found:
        fail("; ".join(found))
    typer.echo("the topics are as they should be")
