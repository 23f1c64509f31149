"""The catalogue of reasons lists exactly the reasons in the code, and the page is generated from it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from citewell.types.v1 import reason_pb2

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "citewell"
# Not part of a service: nothing here answers a caller.
APART = ("bulk", "lab", "demo", "commands")

# Calls that take a reason by position, and enums whose values are reasons.
BY_POSITION = {"InvalidQuery": 3, "OwnerLock": 2, "dead": 0}
ENUMS = ("Reason", "Partial")


def constants(node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression can have: a constant, or both branches of a conditional."""
    match node:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from constants(body)
            yield from constants(orelse)


def said(module: ast.Module) -> Iterator[str]:
    """Every reason in a module."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments, keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "reason":
                        yield from constants(keyword.value)
                if name in BY_POSITION and len(arguments) > BY_POSITION[name]:
                    yield from constants(arguments[BY_POSITION[name]])
            case (
                ast.Assign(targets=[ast.Name(id="default_reason")], value=value)
                | ast.AnnAssign(target=ast.Name(id="default_reason"), value=value)
            ):
                yield from constants(value)
            case ast.ClassDef(name=name, body=body) if name in ENUMS:
                for member in body:
                    if isinstance(member, ast.Assign):
                        yield from constants(member.value)
    for node in module.body:  # a reason with a name of its own, as NOT_AN_EVENT = "NOT_AN_EVENT"
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=text)) if name == text:
                yield name


def test_the_catalogue_lists_what_the_services_say() -> None:
    used = {
        reason
        for path in SERVICES.rglob("*.py")
        if path.relative_to(SERVICES).parts[0] not in APART and "_pb2" not in path.name
        for reason in said(ast.parse(path.read_text()))
    }
    values = reason_pb2.DESCRIPTOR.enum_types_by_name["Reason"].values
    listed = {value.name.removeprefix("REASON_") for value in values} - {"UNSPECIFIED"}
    assert used - listed == set(), "not in protos/citewell/types/v1/reason.proto"
    assert listed - used == set(), "said by no service any more"


def test_the_page_is_made_from_the_catalogue() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "deploy" / "errors_page.py"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "deploy/docs/errors.md").read_text() == made.stdout, "make it anew: python deploy/errors_page.py"
