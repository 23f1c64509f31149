"""The topics that citewell needs, and how those of a broker differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from citewell.ingestion.logs.kafka.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it should be."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]


def wanted_topics(settings: KafkaSettings, partitions: int, replication: int) -> list[Topic]:
    """Records never expire and are never compacted, so that all can be rebuilt. The broker's clock stamps them."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(1, replication - 1)),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(settings.most_message_megabytes << 20),
    }
    # One partition, so that every process agrees which of two dead letters for one event came first.
    return [
        Topic(settings.topic, partitions, replication, configs),
        Topic(settings.dead_letter_topic, 1, replication, configs),
        Topic(settings.feedback_topic, 1, replication, configs),
    ]


def mend(admin: KafkaAdminClient, topics: list[Topic]) -> list[str]:
    """Creates missing topics and corrects the configuration of the others. Returns what it did, a line each."""
    present = {topic["name"]: topic for topic in admin.describe_topics() if topic["partitions"]}
    done = []
    for topic in topics:
        if topic.name not in present:
            options = {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication,
                "configs": topic.configs,
            }
            admin.create_topics({topic.name: options}, wait_for_metadata=True)
            done.append(f"{topic.name}: made, {topic.partitions} partitions, replication {topic.replication}")
        elif wrong := _wrong_configs(admin, topic):
            mended = {name: topic.configs[name] for name in wrong}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=mended)])
            done += [f"{topic.name}: {name} set to {topic.configs[name]}, was {value}" for name, value in wrong.items()]
    return done


def differences(admin: KafkaAdminClient, topics: list[Topic]) -> list[str]:
    """The differences from these topics, one line each."""
    present = {topic["name"]: topic for topic in admin.describe_topics() if topic["partitions"]}
    found = []
    for topic in topics:
        if topic.name not in present:
            found.append(f"{topic.name}: missing")
            continue
        partitions: list[dict[str, Any]] = present[topic.name]["partitions"]
        if len(partitions) != topic.partitions:
            # With more partitions a paper's later events would go to another one than its earlier events.
            found.append(f"{topic.name}: has {len(partitions)} partitions, expected {topic.partitions}")
        if any(len(partition["replica_nodes"]) != topic.replication for partition in partitions):
            found.append(
                f"{topic.name}: replication is {len(partitions[0]['replica_nodes'])}, expected {topic.replication}"
            )
        found += [
            f"{topic.name}: {name} is {value}, expected {topic.configs[name]}"
            for name, value in _wrong_configs(admin, topic).items()
        ]
    return found


def _wrong_configs(admin: KafkaAdminClient, topic: Topic) -> dict[str, str]:
    """The topic's settings that differ, with their present values."""
    asked = ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=dict.fromkeys(topic.configs))
    [described] = admin.describe_configs([asked], config_filter="all").values()
    values = {name: str(config["value"]) for name, config in described[topic.name].items()}
    return {name: values.get(name, "unset") for name, value in topic.configs.items() if values.get(name) != value}
