"""The manifests: every combination builds, follows its schemas and obeys the policies; `--long` tries all of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from citewell.runtime.policy import read_policy
from deploy.observability.prometheus_rule import prometheus_rule
from tests.kubernetes import policies, schemas
from tests.kubernetes.builds import KUBERNETES, OVERLAYS, Object, build, combinations, combined

WHOLE = ("qdrant", "kafka-strimzi", "postgres-external", "triton-gpu", "edge", "monitoring", "keda", "gateway", "mtls")
SMALL = ("embedded-index", "kafka-single", "postgres-single", "edge")


def problems(objects: list[Object], checked: set[str]) -> list[str]:
    """What is wrong with them. An object that has been checked is not checked against its schema again."""
    found = policies.findings(objects)
    for each in objects:
        text = json.dumps(each, sort_keys=True)
        if text in checked:
            continue
        checked.add(text)
        try:
            schemas.check(each)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            found.append(f"{policies.name_of(each)}: {error.message} at {'.'.join(map(str, error.absolute_path))}")
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_follows_schemas_and_policies(overlay: str) -> None:
    assert problems(build(KUBERNETES / "overlays" / overlay), set()) == []


def test_every_manifest_is_part_of_a_kustomization() -> None:
    named = set()
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        text = kustomization.read_text()
        named |= {path for path in kustomization.parent.rglob("*.yaml") if path.name in text}
    lost = [path for path in KUBERNETES.rglob("*.yaml") if path not in named and path.name != "kustomization.yaml"]
    assert lost == []


@pytest.mark.timeout(3600)
def test_every_combination_follows_schemas_and_policies(request: pytest.FixtureRequest) -> None:
    checked: set[str] = set()
    chosen = list(combinations(every=request.config.getoption("--long")))
    with ThreadPoolExecutor(2) as pool:
        for components, objects in zip(chosen, pool.map(combined, chosen), strict=True):
            assert problems(objects, checked) == [], components
    print(f"{len(chosen)} combinations, {len(checked)} different objects")


@pytest.mark.parametrize("components", [SMALL, WHOLE], ids=["small", "whole"])
def test_a_name_prefix_reaches_every_address(components: tuple[str, ...]) -> None:
    objects = combined(components, prefix="blue-")
    assert policies.findings(objects) == []
    text = json.dumps(objects)
    assert '"blue-index"' in text
    addresses = [
        value
        for _, _, pod in policies.pods(objects)
        for container in policies.containers(pod)
        for name, value in policies.environment(container).items()
        if name.endswith(("_ADDRESS", "_SERVERS", "__URL"))
    ]
    assert len(addresses) > 5
    assert [value for value in addresses if not value.removeprefix("http://").startswith("blue-")] == []


def test_every_overlay_and_component_is_tried() -> None:
    named = {name for components in combinations(every=True) for name in components}
    assert named == {path.name for path in (KUBERNETES / "components").iterdir()}


def test_the_alerts_are_those_of_the_rule_file() -> None:
    """`make prometheus-rule` writes them."""
    assert (KUBERNETES / "components" / "monitoring" / "rules.yaml").read_text() == prometheus_rule()


def test_the_access_policy_names_the_certificates(whole: list[Object]) -> None:
    policy = read_policy(KUBERNETES / "components" / "mtls" / "policy.json")
    named = {name for client in policy.clients.values() for name in client.certificates}
    issued = [each["spec"].get("uris", []) for each in whole if each["kind"] == "Certificate"]
    assert named <= {uri for uris in issued for uri in uris}
    assert {"spiffe://citewell/recommender", "spiffe://citewell/operator"} <= named


def first(objects: list[Object], kind: str, name: str) -> Any:
    return next(each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)


def _pod(objects: list[Object], name: str = "recommender") -> Any:
    return first(objects, "Deployment", name)["spec"]["template"]


def _container(objects: list[Object], name: str = "recommender") -> Any:
    return _pod(objects, name)["spec"]["containers"][0]


def _set(objects: list[Object], deployment: str, name: str, value: str) -> None:
    env = _container(objects, deployment)["env"]
    env[:] = [each for each in env if each["name"] != name] + [{"name": name, "value": value}]


BREAKERS: dict[str, Callable[[list[Object]], Any]] = {
    "settings_are_known": lambda it: _set(it, "reranker", "CITEWELL_RERANKER__THREDS", "2"),
    "settings_belong_to_the_service": lambda it: _set(it, "reranker", "CITEWELL_INDEX__PORT", "1"),
    "images_are_pinned": lambda it: _container(it).update(image="citewell-recommender:latest"),
    "pods_are_restricted": lambda it: _container(it)["securityContext"].update(readOnlyRootFilesystem=False),
    "pods_are_labelled": lambda it: _pod(it)["metadata"]["labels"].pop("app.kubernetes.io/part-of"),
    "pods_have_no_token": lambda it: _pod(it)["spec"].update(automountServiceAccountToken=True),
    "resources_are_set": lambda it: _container(it)["resources"]["limits"].pop("ephemeral-storage"),
    "services_have_probes_and_spread": lambda it: _container(it).pop("readinessProbe"),
    "drains_outlast_deadlines": lambda it: _set(it, "recommender", "CITEWELL_RECOMMENDER__GRACE_SECONDS", "20"),
    "threads_follow_the_request": lambda it: _set(it, "reranker", "CITEWELL_RERANKER__THREADS", "7"),
    "scaled_workloads_have_no_replicas": lambda it: first(it, "Deployment", "reranker")["spec"].update(replicas=2),
    "scalers_ask_for_metrics_that_exist": lambda it: first(it, "ScaledObject", "reranker")["spec"]["triggers"][0][
        "metadata"
    ].update(query="sum(citewell_reranker_queue)"),
    "several_pods_have_a_budget": lambda it: it.remove(first(it, "PodDisruptionBudget", "recommender")),
    "references_lead_somewhere": lambda it: it.remove(first(it, "Service", "reranker")),
    "files_are_mounted": lambda it: _container(it, "ingestion")["volumeMounts"].clear(),
    "addresses_are_no_literals": lambda it: _set(
        it, "recommender", "CITEWELL_RECOMMENDER__RERANKER_ADDRESS", "reranker:7300"
    ),
    "everything_is_denied_by_default": lambda it: first(it, "NetworkPolicy", "recommender")["spec"]["ingress"][0].pop(
        "from"
    ),
    "kafka_users_may_do_their_work": lambda it: first(it, "KafkaUser", "citewell-ingestion")["spec"]["authorization"][
        "acls"
    ].pop(0),
}


@pytest.fixture(scope="module")
def whole() -> list[Object]:
    return combined(WHOLE)


@pytest.mark.parametrize("rule", policies.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_notices_what_breaks_it(rule: policies.Rule, whole: list[Object]) -> None:
    objects = copy.deepcopy(whole)
    assert list(rule(objects)) == []
    BREAKERS[rule.__name__](objects)
    assert list(rule(objects)) != []


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Deployment", "reranker"), ("ScaledObject", "reranker"), ("Kafka", "log"), ("Gateway", "citewell")],
)
def test_a_schema_refuses_a_field_that_does_not_exist(kind: str, name: str, whole: list[Object]) -> None:
    broken = copy.deepcopy(first(whole, kind, name))
    broken["spec"]["replicsa"] = 2
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)) as refused:
        schemas.check(broken)
    # Not by `match`: it prints the whole schema, which takes long for Strimzi's.
    assert "replicsa" in refused.value.message
