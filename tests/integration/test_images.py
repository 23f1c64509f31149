"""Each image has the code and the packages of its own service: it starts with nothing else to import."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from citewell.commands.stack import Stack, StackError, choose_ports
from deploy.images.own_code import SERVICES, STARTS, copy
from tests.tiny_models import write_tiny_encoder

ROOT = Path(__file__).parents[2]
LISTS = ROOT / "deploy" / "images" / "requirements"

# Refuses to import what the image's list lacks. Python runs it at start.
_GUARD = """
import importlib.metadata, os, re, sys
_allowed = set(os.environ["TEST_ALLOWED"].split(","))
_packages = importlib.metadata.packages_distributions()
class _Guard:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in _packages and top != "google" and top not in ("citewell", "opentelemetry"):
            from_ = {re.sub(r"[-_.]+", "-", each).lower() for each in _packages[top]}
            if not from_ & _allowed:
                raise ModuleNotFoundError(f"No module named {name!r}: not in the image", name=name)
        return None
sys.meta_path.insert(0, _Guard)
"""


def pinned(image: str) -> dict[str, str]:
    """What an image's list installs."""
    lines = (LISTS / f"{image}.txt").read_text().splitlines()
    found = [re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?==([^ ;]+)", line) for line in lines]
    return {canonicalize_name(each[1]): each[2] for each in found if each}


def seen_by(image: str, folder: Path) -> dict[str, str]:
    """The environment of a process that sees one image's code and packages."""
    copy(image, ROOT / "services" / "citewell", folder / "app" / "citewell")
    guard = folder / "guard"
    guard.mkdir(parents=True)
    (guard / "sitecustomize.py").write_text(_GUARD)
    return {"PYTHONPATH": f"{guard}:{folder / 'app'}", "TEST_ALLOWED": ",".join(pinned(image))}


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return seen_by(request.param, tmp_path)


def test_every_service_starts_with_its_own_code_and_packages(tmp_path: Path) -> None:
    encoder, ports = str(write_tiny_encoder(tmp_path / "encoder")), choose_ports(0)
    stacks = {}
    for service in SERVICES:
        settings = {**seen_by(service, tmp_path / service), "CITEWELL_PROFILER__ENCODER": encoder}
        stacks[service] = Stack(tmp_path / service, ports, settings=settings)
    try:
        for service, stack in stacks.items():
            stack.start([service])
        for service, stack in stacks.items():
            stack.wait([service], seconds=90)
    finally:
        for stack in stacks.values():
            stack.stop()


@pytest.mark.parametrize("environment", ["edge"], indirect=True)
def test_code_of_another_service_is_not_in_the_image(environment: dict[str, str], tmp_path: Path) -> None:
    stack = Stack(tmp_path, choose_ports(0), settings=environment)
    stack.start(["index"])
    try:
        with pytest.raises(StackError, match=r"citewell\.index"):
            stack.wait(["index"], seconds=60)
    finally:
        stack.stop()


@pytest.mark.parametrize(
    ("environment", "module"),
    [("edge", "faiss"), ("index", "openvino"), ("recommender", "sqlalchemy")],
    indirect=["environment"],
)
def test_packages_of_another_service_are_not_in_the_image(environment: dict[str, str], module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "not in the image" in ended.stderr


@pytest.mark.parametrize("environment", ["tools"], indirect=True)
def test_the_tools_have_what_their_commands_import(environment: dict[str, str]) -> None:
    commands = [name.rpartition(".")[2].replace("_", "-") for name in STARTS["tools"] if ".commands." in name]
    program = (
        "import citewell.cli as cli\n"
        f"for name in {commands!r}: cli._load(name, cli.COMMANDS[name])\n"
        "import citewell.runtime.settings, psycopg, alembic\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_the_lists_are_those_of_the_lock_and_of_the_extras(tmp_path: Path) -> None:
    """`make images-lock` writes them; run it after a change of requirements.lock or of an extra."""
    locked = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in (ROOT / "requirements.lock").read_text().splitlines())
        if version
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {"tools": ["tools"], **{name: [name, "otlp"] for name in SERVICES}}
    wanted["profiler"].append("postgres")
    for image, extras in wanted.items():
        have = pinned(image)
        assert {name: locked[name] for name in have} == have, image
        for line in (*project["dependencies"], *_of(project["optional-dependencies"], extras)):
            assert canonicalize_name(Requirement(line).name) in have, (image, line)


def _of(extras: dict[str, list[str]], names: list[str]) -> list[str]:
    """The requirements of some extras, and of the extras that they name."""
    found = []
    for name in names:
        for line in extras[name]:
            requirement = Requirement(line)
            found += _of(extras, sorted(requirement.extras)) if requirement.name == "citewell" else [line]
    return found


def test_every_package_has_a_hash() -> None:
    for path in LISTS.glob("*.txt"):
        entries = re.split(r"\n(?=\S)", path.read_text().strip())
        assert entries
        assert [each for each in entries if "--hash=sha256:" not in each] == [], path.name


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint, "hadolint is not installed: run `make setup-dev`"
    linted = subprocess.run([hadolint, str(ROOT / "deploy" / "Dockerfile")], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")
