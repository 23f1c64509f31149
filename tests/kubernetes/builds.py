"""Every combination of the components, built by kustomize."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.servers.missing import missing

KUBERNETES = Path(__file__).parents[2] / "k8s"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())

# One of each is needed; any of the options may be added, in this order.
INDEXES = ("embedded-index", "qdrant")
LOGS = ("kafka-single", "kafka-strimzi")
LEDGERS = ("postgres-single", "postgres-external")
MODELS = ("", "triton-cpu", "triton-gpu")
OPTIONS = ("edge", "monitoring", "keda", "gateway", "mtls", "gateway-mtls", "network-egress")
NEEDS = {"gateway": {"edge"}, "keda": {"monitoring"}, "gateway-mtls": {"gateway", "mtls"}}

Object = dict[str, Any]

# Threads build while policies change the environment to read settings: the builds keep the one of the start.
# No garbage collection: it takes half of the processor time of so short a process.
_ENVIRONMENT = {**os.environ, "GOGC": "off"}
_KUBECTL = shutil.which("kubectl")


def combinations(every: bool) -> Iterator[tuple[str, ...]]:
    """Names of components that fit together: all combinations, or each component once with few and once with all."""
    shapes = list(itertools.product(INDEXES, LOGS, LEDGERS, MODELS))
    chosen = [frozenset[str](), frozenset(OPTIONS)]
    if every:
        sizes = range(len(OPTIONS) + 1)
        chosen = [frozenset(some) for size in sizes for some in itertools.combinations(OPTIONS, size)]
    else:
        shapes = [shapes[0], shapes[-1], (*shapes[0][:3], "triton-cpu")]
    for shape, options in itertools.product(shapes, chosen):
        if all(NEEDS.get(option, set()) <= options for option in options):
            yield (*(name for name in shape if name), *(name for name in OPTIONS if name in options))


def build(folder: Path) -> list[Object]:
    """The objects of a folder with a kustomization."""
    if _KUBECTL is None:
        missing("kubectl is not installed")
    command = [_KUBECTL, "kustomize", str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, env=_ENVIRONMENT)
    assert built.returncode == 0, f"{folder}: {built.stderr}"
    return [each for each in yaml.load_all(built.stdout, yaml.CSafeLoader) if each]


def combined(components: Sequence[str], prefix: str = "") -> list[Object]:
    """The objects of the base with these components, as an overlay with that prefix gives them."""
    with tempfile.TemporaryDirectory() as made:
        root = os.path.relpath(KUBERNETES, Path(made).resolve())
        told = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "citewell",
            "namePrefix": prefix,
            "resources": [f"{root}/base"],
            "components": [f"{root}/components/{name}" for name in components],
        }
        (Path(made) / "kustomization.yaml").write_text(yaml.safe_dump(told))
        return build(Path(made))
