"""Published figures as regressions: every `tests/repro/*.yaml` names a command and what it must print.

CITEWELL_DATA=... python -m citewell.lab.repro [tests/repro]

data: neurips25                       folder below CITEWELL_DATA
arguments: [--mode, inductive, …]     of `citewell evaluate run`
expected: {profiler: {MRR: [15.2, 0.3]}}      metric: value and tolerance, in points
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from citewell.lab.commands.evaluate import app

Expected = dict[str, dict[str, tuple[float, float]]]


def repro(
    data: Annotated[Path, typer.Option(help="Folder that holds the data sets.", envvar="CITEWELL_DATA", exists=True)],
    folder: Annotated[Path, typer.Argument(help="Folder of the YAML files.", exists=True)] = Path("tests/repro"),
) -> None:
    """Runs every regression; fails if a figure is off by more than its tolerance."""
    off = 0
    for path in sorted(folder.glob("*.yaml")):
        for line, right in check(path, data):
            typer.echo(line)
            off += not right
    if off:
        typer.echo(f"{off} figures are off", err=True)
        raise typer.Exit(1)


def check(path: Path, data: Path) -> list[tuple[str, bool]]:
    """Runs one regression; returns a line for the command and for each figure, and whether all are as expected."""
    stated = yaml.safe_load(path.read_text())
    arguments = [str(argument) for argument in stated["arguments"]]
    command = f"{path.stem}: citewell evaluate run {stated['data']} {' '.join(arguments)}"
    return [(command, True), *compare(stated["expected"], _run(data / stated["data"], arguments))]


def compare(expected: Expected, measured: dict[str, Any]) -> list[tuple[str, bool]]:
    """One line per figure, and whether all are within their tolerances."""
    lines = []
    for system, metrics in expected.items():
        for metric, (value, tolerance) in metrics.items():
            found = measured["systems"][system][metric]["mean"]
            right = abs(found - value) <= tolerance
            verdict = "ok " if right else "OFF"
            lines.append((f"  {verdict} {system} {metric}: {found:.2f}, expected {value:.2f} ± {tolerance:g}", right))
    return lines


def _run(folder: Path, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "figures.json"
        app(["run", str(folder), *arguments, "--json", str(out)], standalone_mode=False)
        measured: dict[str, Any] = json.loads(out.read_text())
    return measured


if __name__ == "__main__":
    typer.run(repro)
