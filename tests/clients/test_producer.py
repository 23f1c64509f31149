"""A Go service that appends to Kafka itself, as deploy/docs/topic.md allows."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import yaml

from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.logs.kafka.settings import KafkaSettings
from citewell.ingestion.logs.kafka.topics import wanted_topics
from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from tests.clients.test_clients import BUF, HERE, ROOT, require, require_buf, run
from tests.e2e.client import Client
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.kafka_topics import fresh_topics, log_on
from tests.servers.processes import wait_until


@pytest.mark.timeout(600)
def test_what_keeps_the_rules_is_searchable_and_the_rest_is_dead_with_a_reason(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    require("go", "Go 1.26 or newer")
    require_buf()
    topics = fresh_topics(kafka_broker, partitions=3)
    run([str(BUF), "generate", "../../../protos"], HERE / "go")
    run(["go", "build", "-o", str(tmp_path / "producer"), "./producer"], HERE / "go")
    environment = {
        "CITEWELL_BROKER": topics.bootstrap_servers,
        "CITEWELL_TOPIC": topics.topic,
        "CITEWELL_TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    stack = Stack(tmp_path / "data", choose_ports(0), settings=log_on(topics))
    stack.start()
    client = Client(stack.addresses)
    try:
        stack.wait()
        told = run([str(tmp_path / "producer")], tmp_path, environment).splitlines()
        places = [(int(partition), int(offset)) for _, partition, offset in map(str.split, told)]
        wait_until(lambda: _searchable(client) >= set(places), "all five records are settled", 60)

        found = client.recommend(messages.Query(context="Badgers dig straight into the log TARGETCIT."))
        assert [item.paper.id for item in found.items] == ["straight-to-kafka"]
        letters = client.ingestion.ListDeadLetters(ingestion_pb2.ListDeadLettersRequest(), timeout=30).dead_letters
        reasons = {(letter.position.partition, letter.position.offset): letter.reason for letter in letters}
        assert reasons == {places[2]: "NOT_AN_EVENT", places[3]: "INVALID_PAPER_ID", places[4]: "EVENT_TOO_LARGE"}
    finally:
        client.close()
        stack.stop()


def _searchable(client: Client) -> set[tuple[int, int]]:
    """The records that answers tell to be settled."""
    try:
        snapshot = client.recommend(messages.Query(title="anything")).snapshot
    except grpc.RpcError:
        return set()
    return {(end.partition, offset) for end in snapshot.searchable for offset in range(end.offset)}


def test_the_asyncapi_page_tells_what_the_settings_say() -> None:
    page = yaml.safe_load((ROOT / "deploy/kafka/asyncapi.yaml").read_text())
    channel = page["channels"]["publications"]
    [events, *_] = wanted_topics(KafkaSettings(), partitions=1, replication=1)
    assert channel["address"] == events.name
    topic = channel["bindings"]["kafka"]["topicConfiguration"]
    assert ",".join(topic["cleanup.policy"]) == events.configs["cleanup.policy"]
    assert str(topic["retention.ms"]) == events.configs["retention.ms"]
    assert str(topic["max.message.bytes"]) == events.configs["max.message.bytes"]
    schema = page["components"]["messages"]["event"]["payload"]["schema"]["$ref"]
    assert (ROOT / "deploy/kafka" / schema).resolve() == ROOT / "protos/citewell/types/v1/publication.proto"
