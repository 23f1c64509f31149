"""Prints deploy/docs/settings.md: every setting of every service, from the settings' own words."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import citewell
from citewell.runtime.settings import NESTING, ServiceSettings

SERVICES = ("recommender", "profiler", "index", "reranker", "ingestion", "edge")


INTRODUCTION = """# Settings

Environment variables, read once at start; unknown ones are errors. `python -m citewell.<service> --print-config` shows
what is in effect, without secrets. `<NAME>_FILE` names a file that holds the value of `<NAME>`. Files of certificates,
tokens and the access policy are read again when they are replaced. Written by `make settings-page`.

## Every service

`CITEWELL_<SERVICE>__…`
"""
PACKAGE = Path(citewell.__file__).parent


def main() -> None:
    print(INTRODUCTION)
    shared = set(ServiceSettings.model_fields)
    _print_table("", ServiceSettings, set())
    for service in SERVICES:
        module = importlib.import_module(f"citewell.{service}.settings")
        kind = getattr(module, f"{service.capitalize()}Settings")
        print(f"\n## {service.capitalize()}\n")
        _print_table(kind.model_config["env_prefix"], kind, shared)


def _print_table(prefix: str, kind: type[BaseModel], left_out: Set[str]) -> None:
    print("| setting | default | |\n|---|---|---|")
    for name, default, words in _rows(prefix, kind, left_out):
        print(f"| `{name}` | {default} | {words} |")


def _rows(prefix: str, kind: type[BaseModel], left_out: Set[str] = frozenset()) -> Iterator[tuple[str, str, str]]:
    for name, field in kind.model_fields.items():
        if name in left_out:
            continue
        inner: Any = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _rows(f"{prefix}{name.upper()}{NESTING}", inner)
            continue
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Path) and default.is_relative_to(PACKAGE):
            default = default.relative_to(PACKAGE.parent)  # where it lies differs from machine to machine
        shown = "" if default in (PydanticUndefined, None, "") else f"`{getattr(default, 'value', default)}`"
        yield f"{prefix}{name.upper()}", shown, " ".join((field.description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
