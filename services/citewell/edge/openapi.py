"""An OpenAPI description of the JSON form, made from the contract's descriptor."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, ServiceDescriptor

_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    # 64-bit integers are strings in protobuf's JSON.
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64"},
}
_INTEGER = {"type": "integer", "format": "int32"}


def openapi(service: ServiceDescriptor, version: str) -> dict[str, Any]:
    """The document: one POST per method, Connect's error object, and every message by name."""
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "array", "items": {"type": "object"}},
            },
        }
    }
    paths = {
        f"/{service.full_name}/{method.name}": {
            "post": {
                "operationId": method.name,
                "requestBody": {"required": True, "content": _content(method.input_type, schemas, stream=False)},
                "responses": {
                    "200": {
                        "description": "A stream of answers" if method.server_streaming else "The answer",
                        "content": _content(method.output_type, schemas, stream=method.server_streaming),
                    },
                    "default": {
                        "description": "An error with its reason in details",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                    },
                },
            }
        }
        for method in service.methods
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": service.full_name, "version": version},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _content(message: Descriptor, schemas: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    return {f"application/{'connect+json' if stream else 'json'}": {"schema": _reference(message, schemas)}}


def _reference(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if message.full_name not in schemas:
        schemas[message.full_name] = {}  # messages may be recursive
        schemas[message.full_name] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {field.json_name: _field(field, schemas) for field in message.fields},
        }
    return {"$ref": f"#/components/schemas/{message.full_name}"}


def _field(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        schema = _reference(field.message_type, schemas)
    elif field.enum_type is not None:
        schema = _enum(field.enum_type)
    else:
        schema = dict(_SCALARS.get(field.type, _INTEGER))
    return {"type": "array", "items": schema} if field.is_repeated else schema


def _enum(enum: EnumDescriptor) -> dict[str, Any]:
    return {"type": "string", "enum": [value.name for value in enum.values]}
