"""The manifests: every object by its schema, every setting by the service that reads it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from citewell.runtime.settings import read_settings
from tests.servers.missing import missing

BASE = Path(__file__).parents[2] / "k8s" / "base"
SECRETS = {"LEDGER_URL": "postgresql://user:password@host/name"}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        missing("kubectl is not installed")
    built = subprocess.run(["kubectl", "kustomize", str(BASE)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def test_every_object_follows_its_schema(objects: list[dict[str, Any]]) -> None:
    for each in objects:
        kubernetes_validate.validate(each, "1.33", strict=True)


def test_every_setting_is_one_of_its_service(objects: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    workloads = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    assert len(workloads) == 6
    for workload in workloads:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        service = container["image"].removeprefix("citewell-")
        kind = getattr(importlib.import_module(f"citewell.{service}.settings"), f"{service.capitalize()}Settings")
        with monkeypatch.context() as environment:
            for variable in container["env"]:
                name = variable["name"]
                assert name.startswith(f"CITEWELL_{service.upper()}__")
                environment.setenv(name, variable.get("value") or SECRETS[name.partition("__")[2]])
            assert read_settings(kind).port == 7300
