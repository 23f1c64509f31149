"""Separate topics for a test on a running broker."""

from __future__ import annotations

import uuid

from kafka import KafkaAdminClient

from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.ingestion.logs.kafka.topics import mend, wanted_topics
from tests.servers.kafka_broker import KafkaBroker


def fresh_topics(broker: KafkaBroker, partitions: int, **changes: object) -> KafkaSettings:
    """Settings of a new log on this broker, with short timeouts."""
    name = uuid.uuid4().hex
    settings = KafkaSettings(
        bootstrap_servers=broker.address,
        topic=f"publications-{name}",
        dead_letter_topic=f"dead-{name}",
        feedback_topic=f"feedback-{name}",
        session_seconds=6.0,
        hand_over_seconds=2.0,
    )
    admin = KafkaAdminClient(**settings.client())
    try:
        mend(admin, wanted_topics(settings, partitions, replication=1))
    finally:
        admin.close()
    return settings.model_copy(update=changes)


def log_on(settings: KafkaSettings) -> dict[str, str]:
    """The environment of an ingestion service whose log is on these topics."""
    kafka = settings.model_dump(
        mode="json", include={"bootstrap_servers", "topic", "dead_letter_topic", "feedback_topic", "session_seconds"}
    )
    return {
        "CITEWELL_INGESTION__LOG__KIND": "kafka",
        **{f"CITEWELL_INGESTION__LOG__KAFKA__{name.upper()}": str(value) for name, value in kafka.items()},
    }
