"""The packages of citewell import each other downwards only, and there are no import cycles."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import citewell
from citewell.cli import COMMANDS

ROOT = Path(citewell.__file__).parent
SERVICES = {"recommender", "profiler", "index", "reranker", "ingestion"}
VOCABULARY = {"contracts", "types", "scholarly", "runtime"}
# What each package may import besides itself. `contracts` stands for the generated code of every service.
ALLOWED = {
    "scholarly": set(),
    "runtime": set(),
    "contracts": {"contracts"},
    "types": {"contracts", "scholarly", "runtime"},
    "inference": set(),
    "corpora": {"scholarly"},
    "demo": {"scholarly"},
    "manuscripts": {"scholarly"},
    "edge": {"contracts", "types", "runtime"},
    "editor": {"client", "manuscripts", "scholarly"},
    **{service: VOCABULARY | {"inference"} for service in SERVICES},
    "recommender": VOCABULARY | {"manuscripts"},
    "client": VOCABULARY,
    # Like the lab above the services: it prepares the profiler's ledger outside of any service.
    "bulk": VOCABULARY | {"profiler", "corpora"},
    "lab": VOCABULARY | SERVICES | {"corpora", "inference", "manuscripts"},
    "commands": VOCABULARY | {"bulk", "client", "corpora", "demo", "editor", "manuscripts"},
    "cli": {"commands", "runtime"},
}
EXCEPTIONS = {
    # These commands do not go through a service: they prepare the ledger for the profiler and the broker for ingestion.
    ("citewell.commands.migrate", "profiler"),
    ("citewell.commands.topics", "ingestion"),
    # The lab's command that calls a service takes the connection options of all commands (citewell.commands.calls).
    ("citewell.lab.commands.feedback", "commands"),
}


def modules() -> dict[str, Path]:
    """Every module that is written by hand, by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "v1" not in path.parts:
            name = ".".join(["citewell", *path.relative_to(ROOT).with_suffix("").parts])
            found[name.removesuffix(".__init__")] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of citewell that a module imports, anywhere in its text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("citewell."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            if node.module == "citewell" or (node.module or "").startswith("citewell."):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield whole if whole in known else str(node.module)


def package_of(module: str) -> str:
    """The package of a module, from its name; empty for citewell itself."""
    parts = module.split(".")
    return "contracts" if "v1" in parts else "".join(parts[1:2])


@pytest.mark.parametrize("package", sorted({package_of(name) for name in modules()} - {""}))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    known = modules()
    wrong = [
        f"{name} imports {other}"
        for name, path in known.items()
        if package_of(name) == package
        for other in imported(name, path, known)
        if package_of(other) not in ALLOWED[package] | {package, ""} and (name, package_of(other)) not in EXCEPTIONS
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    edges = {name: {other for other in imported(name, path, known) if other in known} for name, path in known.items()}
    circles = []
    for start in edges:
        seen, waiting = set[str](), list(edges[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting.extend(edges[module])
        if start in seen:
            circles.append(start)
    assert circles == []


def test_only_what_compares_systems_imports_the_rivals() -> None:
    known = modules()
    comparing = ("citewell.lab.rivals", "citewell.lab.commands", "citewell.lab.global_systems")
    wrong = [
        f"{name} imports {other}"
        for name, path in known.items()
        if not name.startswith(comparing)
        for other in imported(name, path, known)
        if other.startswith("citewell.lab.rivals")
    ]
    assert wrong == []


def test_every_subcommand_lies_where_the_command_line_looks() -> None:
    known = modules()
    for name, entry in COMMANDS.items():
        assert entry.package in ("citewell.commands", "citewell.lab.commands")
        assert f"{entry.package}.{name.replace('-', '_')}" in known


def test_a_command_of_the_lab_names_the_extra_that_is_missing() -> None:
    without_scipy = "import sys; sys.modules['scipy'] = None; from citewell.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", without_scipy, "evaluate", "run", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ},
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.strip() == "citewell: the package 'scipy' is not installed: pip install 'citewell[lab]'"
