"""The topics that citewell needs, and where a broker's differ from them."""

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
    """Neither expired nor compacted, for everything can be rebuilt from the log; and the broker's clock stamps it."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(1, replication - 1)),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(settings.most_message_megabytes << 20),
    }
    # One partition, so that of two dead letters for one event everybody sees the same one first.
    return [
        Topic(settings.topic, partitions, replication, configs),
        Topic(settings.dead_letter_topic, 1, replication, configs),
    ]


def mend(admin: KafkaAdminClient, topics: list[Topic]) -> list[str]:
    """Makes what is missing and mends the configuration of what is there; says what it did."""
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
    """What is not as it should be, one line each."""
    present = {topic["name"]: topic for topic in admin.describe_topics() if topic["partitions"]}
    found = []
    for topic in topics:
        if topic.name not in present:
            found.append(f"{topic.name}: missing")
            continue
        partitions: list[dict[str, Any]] = present[topic.name]["partitions"]
        if len(partitions) != topic.partitions:
            # More would send a paper's later events to another partition than its earlier ones.
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
    """The settings of a topic that are not as wanted, with the values they have."""
    asked = ConfigResource(ConfigResourceType.TOPIC, topic.name, configs=dict.fromkeys(topic.configs))
    [described] = admin.describe_configs([asked], config_filter="all").values()
    values = {name: str(config["value"]) for name, config in described[topic.name].items()}
    return {name: values.get(name, "unset") for name, value in topic.configs.items() if values.get(name) != value}
