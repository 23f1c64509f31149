"""Copies the code that one image needs: its own package whole, the shared packages that it imports, and contracts.

    python own_code.py SERVICE SOURCE TARGET      SOURCE and TARGET are folders of the package citewell

Of other services only the contracts (v1) are copied. `tools` is the operator's command line without `up`, `demo`, `lsp`
and the lab. Needs nothing but the standard library, since it runs while an image is built.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

SERVICES = ("recommender", "profiler", "index", "reranker", "ingestion", "edge")
# What an image starts with. Whole packages are copied; of commands and other services only what is imported.
STARTS = {
    **{name: [f"citewell.{name}"] for name in SERVICES},
    "tools": [
        "citewell.cli",
        *(
            f"citewell.commands.{name}"
            for name in (
                "dead_letters", "doctor", "explain", "load", "migrate", "publish", "rebuild", "recommend", "replay",
                "restore", "service_config", "status", "topics",
            )
        ),
    ],
}  # fmt: skip
SPLIT = ("commands", *SERVICES)
"""Packages of which single modules are taken, unless they are the image's own."""


def needed(image: str, source: Path) -> set[Path]:
    """The files, relative to the source, that the image's code imports, and what lies beside them."""
    found: set[Path] = set()
    waiting = list(STARTS[image])
    while waiting:
        name = waiting.pop()
        for path in _files(name, image, source):
            if path not in found:
                found.add(path)
                if path.suffix == ".py":
                    waiting.extend(_imported(source / path))
    return found


def _files(name: str, image: str, source: Path) -> Iterator[Path]:
    """What a dotted name brings: a module and its packages' __init__, or a whole package where that is not split."""
    parts = name.split(".")[1:]
    if parts and (source / parts[0]).is_dir() and (parts[0] not in SPLIT or parts[0] == image):
        yield from _whole(source / parts[0], source)
        return
    while parts and not ((source / Path(*parts)).is_dir() or (source / Path(*parts)).with_suffix(".py").is_file()):
        parts = parts[:-1]  # a name inside a module
    for length in range(len(parts)):
        init = Path(*parts[:length], "__init__.py")
        if (source / init).is_file():
            yield init
    path = Path(*parts)
    if (source / path).is_dir() and parts:
        if "migrations" in [each.name for each in (source / path).iterdir()]:
            yield from _whole(source / path / "migrations", source)  # alembic loads them by their names
        if (source / path / "__init__.py").is_file():
            yield path / "__init__.py"
    elif parts:
        yield path.with_suffix(".py")


def _whole(folder: Path, source: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyi":
            yield path.relative_to(source)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("citewell"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("citewell"):
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)


def copy(image: str, source: Path, target: Path) -> None:
    """Copies what is needed."""
    for path in sorted(needed(image, source)):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in STARTS:
        sys.exit(f"usage: own_code.py {{{','.join(STARTS)}}} SOURCE TARGET")
    copy(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
