"""What every set of manifests must obey. Each rule yields one line for each thing that breaks it."""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from citewell.ingestion.feedback import FEEDBACK_GROUP
from citewell.ingestion.logs.kafka.topics import wanted_topics
from citewell.ingestion.settings import IngestionSettings
from citewell.runtime.settings import ServiceSettings, UnknownSetting, read_settings
from tests.kubernetes.builds import Object

Rule = Callable[[list[Object]], Iterator[str]]
CODE = Path(__file__).parents[2] / "services" / "citewell"

WORKLOADS = ("Deployment", "StatefulSet", "Job", "CronJob")
SERVICES = ("recommender", "profiler", "index", "reranker", "ingestion", "edge")
SECRET = "from-a-secret"
# Names of objects that others make: the operators, and the operator of the cluster (deploy/docs/kubernetes.md).
OUTSIDE = {"ledger", "ledger-owner", "postgres-ca", "qdrant", "citewell-public", "log-cluster-ca-cert"}


def name_of(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Name, metadata and spec of the pods of each workload."""
    for each in objects:
        if each["kind"] in WORKLOADS:
            outer = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
            yield name_of(each), outer["template"]["metadata"], outer["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def service_of(container: Object) -> str:
    """The service whose image a container runs; empty for other images."""
    found = re.search(r"(?:^|/)citewell-([a-z]+)(?=[:@]|$)", container["image"])
    return found[1] if found and found[1] in SERVICES else ""


def environment(container: Object) -> dict[str, str]:
    """The variables as the kubelet gives them to the process."""
    made: dict[str, str] = {}
    for variable in container.get("env", []):
        if "value" in variable:
            text = variable["value"]
            made[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: made.get(name[1], name[0]), text)
        elif "resourceFieldRef" in variable["valueFrom"]:
            made[variable["name"]] = str(_cores(container))
        else:
            made[variable["name"]] = SECRET
    return made


def _with_secrets(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings; for those that are read from a file, a value that such a file may hold."""
    for name, value in variables.items():
        setting = name.removesuffix("_FILE")
        secret = "postgresql://user:password@host/name" if setting.endswith("_URL") else SECRET
        yield setting, value if setting == name else secret


def _cores(container: Object) -> int:
    """Requested cores, rounded up as the kubelet does."""
    text = str(container["resources"]["requests"]["cpu"])
    return -(-int(text[:-1]) // 1000) if text.endswith("m") else int(text)


def settings_of(container: Object, service: str) -> ServiceSettings:
    """The settings that the service reads from its container's environment; UnknownSetting where one is wrong."""
    kind = getattr(importlib.import_module(f"citewell.{service}.settings"), f"{service.capitalize()}Settings")
    variables = {name: value for name, value in environment(container).items() if name.startswith("CITEWELL_")}
    return _read(kind, tuple(_with_secrets(variables)))


@functools.cache  # most combinations have the same containers
def _read(kind: type[ServiceSettings], told: tuple[tuple[str, str], ...]) -> ServiceSettings:
    with mock.patch.dict(os.environ, dict(told), clear=True):
        return read_settings(kind)


def _ours(objects: list[Object]) -> Iterator[tuple[str, Object, Object, str]]:
    for name, _, pod in pods(objects):
        for container in pod["containers"]:
            if service := service_of(container):
                yield name, pod, container, service


def settings_are_known(objects: list[Object]) -> Iterator[str]:
    """Every variable is a setting of its service, with a value it takes."""
    for name, _, container, service in _ours(objects):
        try:
            settings_of(container, service)
        except UnknownSetting as error:
            yield f"{name}: {error}"


def settings_belong_to_the_service(objects: list[Object]) -> Iterator[str]:
    for name, _, container, service in _ours(objects):
        for variable in container["env"]:
            if variable["name"].startswith("CITEWELL_") and not variable["name"].startswith(
                f"CITEWELL_{service.upper()}__"
            ):
                yield f"{name}: {variable['name']} is no setting of the {service}"


def images_are_pinned(objects: list[Object]) -> Iterator[str]:
    """Ours by a tag at least, since a digest exists only once they are built; others by digest."""
    for name, _, pod in pods(objects):
        for container in containers(pod):
            image = container["image"]
            tag = re.search(r":([\w.-]+)(@|$)", image.rpartition("/")[2])
            pinned = "@sha256:" in image
            if not pinned and (tag is None or tag[1] == "latest" or "citewell-" not in image):
                yield f"{name}: image {image}"


def pods_are_restricted(objects: list[Object]) -> Iterator[str]:
    """As the Pod Security Standard "restricted" demands, with a root file system that nobody writes to."""
    for name, _, pod in pods(objects):
        whole = pod.get("securityContext", {})
        if not whole.get("runAsNonRoot") or whole.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name}: runAsNonRoot or the seccomp profile is missing"
        for container in containers(pod):
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
                yield f"{name}: {container['name']} may gain privileges"
            # Kafka's start script writes its configuration below /opt.
            if own.get("readOnlyRootFilesystem") is not True and container["name"] != "broker":
                yield f"{name}: {container['name']} may write to its root file system"


def pods_are_labelled(objects: list[Object]) -> Iterator[str]:
    for name, metadata, _ in pods(objects):
        if metadata.get("labels", {}).get("app.kubernetes.io/part-of") != "citewell" or "app" not in metadata["labels"]:
            yield f"{name}: a pod without the labels app and part-of"


def pods_have_no_token(objects: list[Object]) -> Iterator[str]:
    """No pod talks to the Kubernetes API."""
    accounts = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ServiceAccount"}
    for name, _, pod in pods(objects):
        account = accounts.get(pod.get("serviceAccountName", ""), {})
        if pod.get("automountServiceAccountToken", account.get("automountServiceAccountToken")) is not False:
            yield f"{name}: its pod gets a token of the API server"


def resources_are_set(objects: list[Object]) -> Iterator[str]:
    for name, _, pod in pods(objects):
        for container in containers(pod):
            requests, limits = (container.get("resources", {}).get(key, {}) for key in ("requests", "limits"))
            wanted = {"cpu", "memory", "ephemeral-storage"}
            if lacking := [*(wanted - requests.keys()), *({"memory", "ephemeral-storage"} - limits.keys())]:
                yield f"{name}: {container['name']} has no {', '.join(sorted(lacking))}"
        for volume in pod.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{name}: the volume {volume['name']} has no limit"


def services_have_probes_and_spread(objects: list[Object]) -> Iterator[str]:
    for name, pod, container, _ in _ours(objects):
        if lacking := [kind for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind not in container]:
            yield f"{name}: no {', '.join(lacking)}"
        spread = {each["topologyKey"] for each in pod.get("topologySpreadConstraints", [])}
        if spread != {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}:
            yield f"{name}: not spread over nodes and zones"


def longest_deadline(settings: ServiceSettings, service: str, apply_seconds: float) -> float:
    """The longest that a call of the service may take."""
    longest = settings.default_deadline_seconds
    if service == "edge":
        longest = max(longest, settings.longest_deadline_seconds)  # type: ignore[attr-defined]
    if service == "profiler" and settings.project:  # type: ignore[attr-defined]
        longest = max(longest, apply_seconds)
    return longest


def drains_outlast_deadlines(objects: list[Object]) -> Iterator[str]:
    """A pod that stops finishes what it accepted, before the kubelet kills it."""
    apply_seconds = IngestionSettings.model_fields["pace"].default.apply_seconds
    for name, pod, container, service in _ours(objects):
        settings = settings_of(container, service)
        longest = longest_deadline(settings, service, apply_seconds)
        if settings.grace_seconds < longest:
            yield f"{name}: GRACE_SECONDS {settings.grace_seconds:.0f} is less than the longest deadline {longest:.0f}"
        needed = settings.drain_seconds + settings.grace_seconds
        if pod.get("terminationGracePeriodSeconds", 30) <= needed:
            yield f"{name}: terminationGracePeriodSeconds is not more than drain and grace, {needed:.0f}"


THREADS = {"profiler": "encoder_threads", "reranker": "threads", "index": "search_threads"}


def threads_follow_the_request(objects: list[Object]) -> Iterator[str]:
    for name, _, container, service in _ours(objects):
        if service in THREADS:
            threads = getattr(settings_of(container, service), THREADS[service])
            if threads != _cores(container):
                yield f"{name}: {threads} threads on {_cores(container)} requested cores"


def scaled_workloads_have_no_replicas(objects: list[Object]) -> Iterator[str]:
    """And each is scaled by one scaler."""
    targets: dict[str, str] = {}
    replicas = {name_of(each): each["spec"].get("replicas") for each in objects if each["kind"] in WORKLOADS}
    for each in objects:
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = each["spec"]["scaleTargetRef"]
            key = f"{target.get('kind', 'Deployment')}/{target['name']}"
            if key in targets:
                yield f"{key} is scaled by {targets[key]} and by {name_of(each)}"
            targets[key] = name_of(each)
            if key not in replicas:
                yield f"{name_of(each)} scales {key}, which is not there"
            elif replicas[key] is not None:
                yield f"{key} has replicas, and {name_of(each)} scales it"


@functools.cache
def _metrics() -> set[str]:
    """Names of the metrics that the code creates."""
    text = "\n".join(path.read_text() for path in CODE.rglob("*.py"))
    return set(re.findall(r"create_\w+\(\s*\"(citewell_\w+)\"", text))


def scalers_ask_for_metrics_that_exist(objects: list[Object]) -> Iterator[str]:
    known = _metrics()
    for each in objects:
        if each["kind"] == "ScaledObject":
            for trigger in each["spec"]["triggers"]:
                query = trigger["metadata"]["query"]
                for metric in re.findall(r"citewell_\w+", query):
                    if metric not in known:
                        yield f"{name_of(each)}: no service has a metric {metric}"
                if f'namespace="{each["metadata"].get("namespace")}"' not in query:
                    yield f"{name_of(each)}: the query is not of its namespace: {query}"


def several_pods_have_a_budget(objects: list[Object]) -> Iterator[str]:
    budgets = [each["spec"]["selector"]["matchLabels"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet") and each["spec"].get("replicas") != 1:
            labels = each["spec"]["template"]["metadata"]["labels"]
            if not any(budget.items() <= labels.items() for budget in budgets):
                yield f"{name_of(each)} has several pods and no PodDisruptionBudget"


def references_lead_somewhere(objects: list[Object]) -> Iterator[str]:
    """Addresses, accounts, volumes, routes and issuers name objects that are there, or that others make."""
    there = {name_of(each) for each in objects}
    made = {each["metadata"]["name"] for each in objects if each["kind"] == "KafkaUser"}
    made |= {each["spec"]["secretName"] for each in objects if each["kind"] == "Certificate"}
    for name, _, pod in pods(objects):
        if (account := pod.get("serviceAccountName")) and f"ServiceAccount/{account}" not in there:
            yield f"{name}: no ServiceAccount {account}"
        for volume in pod.get("volumes", []):
            if (found := volume.get("configMap", {}).get("name")) and f"ConfigMap/{found}" not in there:
                yield f"{name}: no ConfigMap {found}"
            if found := volume.get("secret", {}).get("secretName"):
                yield from _secret(name, found, there, made)
        for container in containers(pod):
            for variable in container.get("env", []):
                if re.fullmatch(r"[A-Z]+(_[A-Z]+)*_HOST|QDRANT_NODES", variable["name"]):
                    if f"Service/{variable['value']}" not in there:
                        yield f"{name}: no Service {variable['value']} ({variable['name']})"
                elif variable["name"] == "KAFKA_CLUSTER" and f"Kafka/{variable['value']}" not in there:
                    yield f"{name}: no Kafka {variable['value']}"
                if found := variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name"):
                    yield from _secret(name, found, there, made)
    for each in objects:
        for rule in each["spec"].get("rules", []) if each["kind"].endswith("Route") else []:
            for backend in rule["backendRefs"]:
                if f"Service/{backend['name']}" not in there:
                    yield f"{name_of(each)}: no Service {backend['name']}"


def _secret(name: str, secret: str, there: set[str], made: set[str]) -> Iterator[str]:
    if secret not in OUTSIDE | made and f"Secret/{secret}" not in there:
        yield f"{name}: nobody makes the Secret {secret}"


def files_are_mounted(objects: list[Object]) -> Iterator[str]:
    """What a variable names below /etc/citewell lies in a volume, and no secret is a variable."""
    for name, _, pod in pods(objects):
        for container in containers(pod):
            mounts = [each["mountPath"] for each in container.get("volumeMounts", [])]
            for variable in container.get("env", []):
                value = variable.get("value", "")
                if value.startswith("/etc/citewell/") and value.rpartition("/")[0] not in mounts:
                    yield f"{name}: nothing is mounted where {variable['name']} points, {value}"
                if "secretKeyRef" in variable.get("valueFrom", {}) and "citewell-" in container["image"]:
                    yield f"{name}: the secret {variable['name']} is an environment variable, not a file"


def addresses_are_no_literals(objects: list[Object]) -> Iterator[str]:
    """An address names its Service by a variable that kustomize renames with it."""
    for name, _, pod in pods(objects):
        for container in containers(pod):
            for variable in container.get("env", []):
                if re.search(r"_(ADDRESS|SERVERS|QDRANT__URL)$", variable["name"]) and "$(" not in variable["value"]:
                    yield f"{name}: {variable['name']} is the literal {variable['value']}"


def everything_is_denied_by_default(objects: list[Object]) -> Iterator[str]:
    """One policy closes all our pods to callers; each workload that listens has a policy of its own."""
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    ours = {"matchLabels": {"app.kubernetes.io/part-of": "citewell"}}
    if not any(each["podSelector"] == ours and not each.get("ingress") for each in policies):
        yield "no policy denies callers by default"
    for each in policies:
        for rule in each.get("ingress", []):
            if not rule.get("from"):
                yield f"a policy lets everybody call {each['podSelector']}"
            if not rule.get("ports"):
                yield f"a policy opens every port of {each['podSelector']}"
    for name, metadata, pod in pods(objects):
        listens = any(container.get("ports") for container in pod["containers"])
        if listens and not any(_selects(each["podSelector"], metadata["labels"]) for each in policies):
            yield f"{name}: no policy says who may call it"


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether it selects these labels, and not simply all our pods."""
    wanted: Mapping[str, Any] = selector.get("matchLabels", {})
    among = selector.get("matchExpressions", [])
    by_name = "app" in wanted or any(each["key"] == "app" for each in among)
    return (
        by_name
        and wanted.items() <= labels.items()
        and all(labels.get(each["key"]) in each["values"] for each in among)
    )


def kafka_users_may_do_their_work(objects: list[Object]) -> Iterator[str]:
    """`citewell topics apply` makes every topic, ingestion writes and reads them, and asks for its groups' offsets."""
    settings = IngestionSettings().log
    topics = [topic.name for topic in wanted_topics(settings.kafka, 1, 1)]
    needed = {
        "topics": [("topic", name, {"Create", "AlterConfigs", "DescribeConfigs"}) for name in topics],
        "ingestion": [
            *(("topic", name, {"Read", "Write", "Describe"}) for name in topics),
            ("group", settings.group, {"Read", "Describe"}),
            ("group", FEEDBACK_GROUP, {"Describe"}),
        ],
    }
    for each in objects:
        if each["kind"] != "KafkaUser":
            continue
        rights = each["spec"]["authorization"]["acls"]
        user = each["metadata"]["name"].rpartition("citewell-")[2]  # the name may begin with an overlay's prefix
        for kind, name, operations in needed[user]:
            given = {right for acl in rights if _covers(acl["resource"], kind, name) for right in acl["operations"]}
            if missing := sorted(operations - given):
                yield f"{name_of(each)} lacks {', '.join(missing)} on the {kind} {name}"


def _covers(resource: Object, kind: str, name: str) -> bool:
    if resource["type"] != kind:
        return False
    return name.startswith(resource["name"]) if resource["patternType"] == "prefix" else name == resource["name"]


RULES: tuple[Rule, ...] = (
    settings_are_known,
    settings_belong_to_the_service,
    images_are_pinned,
    pods_are_restricted,
    pods_are_labelled,
    pods_have_no_token,
    resources_are_set,
    services_have_probes_and_spread,
    drains_outlast_deadlines,
    threads_follow_the_request,
    scaled_workloads_have_no_replicas,
    scalers_ask_for_metrics_that_exist,
    several_pods_have_a_budget,
    references_lead_somewhere,
    files_are_mounted,
    addresses_are_no_literals,
    everything_is_denied_by_default,
    kafka_users_may_do_their_work,
)


def findings(objects: list[Object]) -> list[str]:
    """All that breaks a rule."""
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(objects)]
