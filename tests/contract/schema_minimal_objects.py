"""Minimal objects that the schema of a kind allows: only required fields, and one optional field more.

Without webhooks an API server checks only the definition of a kind. All texts are equal, so such objects refer to
each other.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.schema import validate_and_default
from batchyard.api.scheme import ServedKind
from batchyard.operator_manifests import InstallSettings
from batchyard.operator_manifests.rights import crd_objects

NAME: Final = "a"
_DEPTH: Final = 6
_TEXTS: Final = {"date-time": "2026-01-01T00:00:00Z", "duration": "5s"}
_OF_ALL: Final = ("apiVersion", "kind", "metadata")


class AllowedObjects(NamedTuple):
    """A kind, and objects that its schema allows; the first has only required fields."""

    info: ServedKind
    objects: list[Obj]


def allowed_objects() -> Mapping[str, AllowedObjects]:
    """Return such objects of each kind that an operator installs."""
    by_name = {f"{info.plural}.{info.group}": info for info in scheme.KINDS}
    result = {}
    for definition in crd_objects(InstallSettings()):
        info = by_name[definition["metadata"]["name"]]
        schema = next(v["schema"]["openAPIV3Schema"] for v in definition["spec"]["versions"] if v["storage"])
        bodies = list(_larger_values(schema, _DEPTH))
        distinct = [body for number, body in enumerate(bodies) if body not in bodies[:number]]
        result[info.constant] = AllowedObjects(info, [_stored_form(info, body) for body in distinct])
    return result


def _stored_form(info: ServedKind, body: Mapping[str, Any]) -> Obj:
    """Return the object as an API server stores it, with the defaults of its schema."""
    metadata = {"name": NAME, "uid": f"uid-{info.singular}", **({"namespace": NAME} if info.namespaced else {})}
    obj = {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **body}
    return validate_and_default(info, info.storage_version, obj).obj or obj


def _minimal_value(schema: Mapping[str, Any]) -> Any:
    """Return the minimal value that a schema allows."""
    if "default" in schema or "enum" in schema:
        return schema["default"] if "default" in schema else schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _minimal_value(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [_minimal_value(schema["items"])] * max(1, schema.get("minItems", 0))
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            return _TEXTS.get(schema.get("format", ""), NAME)
    return 1  # a number, or a numeric text


def _larger_values(schema: Mapping[str, Any], depth: int) -> Iterator[Any]:
    """Yield the minimal value, and the same with each optional field."""
    yield _minimal_value(schema)
    if depth and schema.get("type") == "array":
        yield from ([item] for item in _larger_values(schema["items"], depth - 1))
    for name, field in (schema.get("properties") or {}).items() if depth else ():
        if name not in _OF_ALL:
            yield from ({**_minimal_value(schema), name: value} for value in _larger_values(field, depth - 1))
