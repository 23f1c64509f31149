"""No program is started by a plain fork, because gRPC's fork handlers sometimes crash the child.

Python uses vfork unless a program is started as another user or with code of ours before it (Popen in CPython 3.11).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORKING_OPTIONS = {"user", "group", "extra_groups", "preexec_fn"}
STARTING = {"Popen", "run", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell"}


def forks(source: str) -> Iterator[int]:
    """The lines at which programs are started by a fork, or the process forks itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, options = node.func.attr, {keyword.arg for keyword in node.keywords}
            if called in {"fork", "forkpty"} or (called in STARTING and options & FORKING_OPTIONS):
                yield node.lineno


@pytest.mark.parametrize("folder", ["services", "tests", "deploy"])
def test_no_program_is_started_by_a_fork(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]
    assert {f"{path}:{line}" for path in paths for line in forks(path.read_text())} == set()


def test_forks_are_found() -> None:
    source = "os.fork()\nsubprocess.run([], user=1)\nsubprocess.Popen([], preexec_fn=f)\nsubprocess.run([], cwd='/')"
    assert list(forks(source)) == [1, 2, 3]
