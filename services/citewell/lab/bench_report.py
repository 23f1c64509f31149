"""Markdown tables for benchmarks, and a description of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with the first column aligned left and the figures aligned right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def environment(packages: Sequence[str]) -> str:
    """The machine, and the versions of the packages used."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"Machine: {_cpu()}, {os.cpu_count()} cores. Python {platform.python_version()}, {versions}."


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    fast = [flag for flag in ("avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8") if any(flag in x for x in lines)]
    return f"{models[0] if models else platform.processor()} ({', '.join(fast) or platform.machine()})"
