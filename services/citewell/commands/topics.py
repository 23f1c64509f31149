"""`citewell topics`: the Kafka topics of the cluster set-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from citewell.commands.failing import fail
from citewell.ingestion.logs.kafka.calls import translated
from citewell.ingestion.logs.kafka.topics import Topic, differences, mend, wanted_topics
from citewell.ingestion.settings import IngestionSettings
from citewell.runtime.settings import read_settings

app = typer.Typer(no_args_is_help=True, help="The topics on the broker that CITEWELL_INGESTION__LOG__KAFKA__* names.")

Partitions = Annotated[int, typer.Option(min=1, help="Of the events' topic. Cannot be changed while it holds events.")]
Replication = Annotated[int, typer.Option(min=1, help="On how many brokers each partition lies.")]


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
        admin = KafkaAdminClient(**settings.client())
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
