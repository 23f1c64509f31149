"""deploy/compose.yaml: read by Compose's own loader; settings, images and files are those that exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.policies import SERVICES, environment, settings_of
from tests.servers.missing import missing

DEPLOY = Path(__file__).parents[2] / "deploy"
LOADER = DEPLOY.parent / ".cache" / "compose" / "cmd"
PROFILES = ("triton-gpu", "triton-cpu")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return told


@pytest.mark.parametrize("profile", ["", *PROFILES])
def test_composes_own_loader_takes_it(profile: str) -> None:
    if not LOADER.exists():
        missing("Compose's loader is not here: run `make setup-compose` (needs Go)")
    told = {**os.environ, "COMPOSE_PROFILES": profile}
    read = subprocess.run([LOADER, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, env=told)
    assert read.returncode == 0, read.stderr


def test_it_has_every_service_and_store(services: dict[str, Any]) -> None:
    others = {"kafka", "postgres", "qdrant", "migrate", "topics", "prometheus", "grafana", "otel-collector", *PROFILES}
    assert set(services) == {*SERVICES, *others}


@pytest.mark.parametrize("service", SERVICES)
def test_settings_are_those_of_the_service(services: dict[str, Any], service: str) -> None:
    told = services[service]
    env = [
        {"name": name, "value": re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(value))}
        for name, value in told["environment"].items()
    ]
    container = {"env": env, "image": told["image"]}
    assert environment(container)
    settings = settings_of(container, service)
    assert (settings.port, settings.health_port, settings.metrics_port) == (7300, 7390, 9100)
    longest = 130 if service == "profiler" else settings.grace_seconds
    assert float(told["stop_grace_period"].removesuffix("s")) > settings.drain_seconds + longest
    for name, address in ((each["name"], each["value"]) for each in env if each["name"].endswith("_ADDRESS")):
        assert address.partition(":")[0] in {*services, "triton"}, name


def test_images_are_built_here_or_pinned_by_digest(services: dict[str, Any]) -> None:
    for name, told in services.items():
        pinned = re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", told["image"])
        built = told.get("build", {}).get("dockerfile") == "deploy/Dockerfile"
        assert pinned or built, name


def test_ports_are_open_on_this_machine_alone(services: dict[str, Any]) -> None:
    published = [port for told in services.values() for port in told.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_mounted_files_are_there(services: dict[str, Any]) -> None:
    mounted = [volume for told in services.values() for volume in told.get("volumes", [])]
    files = [volume.partition(":")[0] for volume in mounted if volume.startswith(".")]
    assert len(files) > 3
    assert [file for file in files if not (DEPLOY / file).exists()] == []


def test_every_secret_is_made_by_the_script(tmp_path: Path) -> None:
    """In a copy: the script, then each secret that the file names."""
    script = tmp_path / "compose-secrets.sh"
    script.write_bytes((DEPLOY / "compose-secrets.sh").read_bytes())
    for _ in range(2):  # again changes nothing
        subprocess.run(["bash", str(script)], check=True)
        made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    secrets = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["secrets"]
    assert {Path(each["file"]).name for each in secrets.values()} == set(made)
    assert made["citewell-url"] == f"postgresql://citewell:{made['citewell-password']}@postgres/ledger"
    assert len(made["owner-password"]) == 48
