"""Strict schemas: Kubernetes' own from the package kubernetes-validate, those of operators from their CRDs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.kubernetes.builds import Object
from tests.servers.missing import missing

CRDS = Path(__file__).parents[2] / ".cache" / "crds"
VERSION = "1.33"


def check(each: Object) -> None:
    """Raises when the object has a field that its schema lacks, or a wrong value."""
    if _is_kubernetes(each["apiVersion"]):
        kubernetes_validate.validate(each, VERSION, strict=True)
        return
    known = _custom_schemas()
    key = each["apiVersion"], each["kind"]
    assert key in known, f"no CRD of {key} in {CRDS}"
    jsonschema.validate(each, known[key])


def _is_kubernetes(version: str) -> bool:
    group, _, rest = version.partition("/")
    return not rest or "." not in group or group in ("networking.k8s.io", "rbac.authorization.k8s.io")


@functools.cache
def _custom_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    if not (CRDS / ".complete").exists():
        missing("the operators' CRDs are not here: run `make setup-crds` (needs Go, Java 17 and Maven)")
    found = {}
    for path in sorted(CRDS.glob("*.yaml")):
        for crd in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            for version in crd["spec"]["versions"]:
                schema = _strict(version["schema"]["openAPIV3Schema"], generated=path.name.startswith("strimzi-"))
                schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
                key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
                found[key] = schema
    return found


def _strict(schema: dict[str, Any], *, generated: bool) -> dict[str, Any]:
    """The schema, closed: no field beside those it names.

    The generated ones name a class's own fields only, not those of its subclasses, which the field `type` selects; and
    they call any Java object an object.
    """
    made = {key: value for key, value in schema.items() if key in _KEPT}
    inner = functools.partial(_strict, generated=generated)
    if "properties" in schema:
        made["properties"] = {name: inner(value) for name, value in schema["properties"].items()}
        open_ = schema.get("x-kubernetes-preserve-unknown-fields") or (generated and "type" in schema["properties"])
        if not open_ and "additionalProperties" not in schema:
            made["additionalProperties"] = False
    elif generated and schema.get("type") == "object" and "additionalProperties" not in schema:
        return {}
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = inner(schema["additionalProperties"])
    if "pattern" in schema:
        made["pattern"] = schema["pattern"].replace("^(?i)", "(?i)^")  # Go lets a flag stand behind the anchor
    if "items" in schema:
        made["items"] = inner(schema["items"])
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
        made.pop("anyOf", None)
    return made


# `oneOf` and `anyOf` only restrict in CRDs; they name no further fields.
_KEPT = (
    "type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "oneOf", "anyOf", "allOf", "not",
)  # fmt: skip
