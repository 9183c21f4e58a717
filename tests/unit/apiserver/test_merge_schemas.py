"""The merge schema of built-in kinds and of CustomResourceDefinitions."""

from typing import Any

import pytest

from batchyard.api.scheme import JOB, POD, kind_info
from batchyard.apiserver.patch import MergeSchema, merge_schema_of_custom_kind, merge_schema_of_kind
from batchyard.apiserver.serialization import prune_to_merge_schema

TEXT = {"type": "string"}
PORT = {"properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}
SCHEMA: dict[str, Any] = {
    "properties": {
        "ports": {"items": PORT, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"]},
        "names": {"items": TEXT, "x-kubernetes-list-type": "set"},
        "steps": {"items": PORT, "x-kubernetes-list-type": "atomic"},
        "selector": {"properties": {"app": TEXT}, "x-kubernetes-map-type": "atomic"},
        "labels": {"additionalProperties": TEXT},
        "open": {"properties": {"a": TEXT}, "x-kubernetes-preserve-unknown-fields": True},
    }
}
CUSTOM = merge_schema_of_custom_kind(SCHEMA)


def at(shape: MergeSchema, *path: str) -> MergeSchema:
    """The merge schema at a path; `[]` are the items of a list."""
    for name in path:
        shape = shape.item_schema if name == "[]" else shape.field_schema(name)
    return shape


@pytest.mark.parametrize(
    ("field", "keys", "is_atomic"),
    [
        ("ports", ("port", "protocol"), False),
        ("names", (), False),
        ("steps", None, False),
        ("selector", None, True),
        ("labels", None, False),
    ],
)
def test_schema_defines_list_keys_and_atomic_fields(field: str, keys: tuple[str, ...] | None, is_atomic: bool) -> None:
    shape = at(CUSTOM, field)
    assert (shape.keys, shape.is_atomic) == (keys, is_atomic)


def test_schema_key_has_default() -> None:
    assert at(CUSTOM, "ports", "[]", "protocol").default == "TCP"


def test_pruned_drops_unknown_fields_unless_preserved() -> None:
    sent = {"labels": {"a": "b"}, "open": {"b": 1}, "steps": [{"port": 1, "prt": 2}], "selector": {"x": "y"}, "z": 1}
    known, faults = prune_to_merge_schema(sent, CUSTOM)
    assert known == {"labels": {"a": "b"}, "open": {"b": 1}, "steps": [{"port": 1}], "selector": {}}
    assert faults == ['unknown field "steps[0].prt"', 'unknown field "selector.x"', 'unknown field "z"']


def test_pruned_returns_same_object_without_unknown_fields() -> None:
    sent = {"labels": {"a": "b"}, "steps": [{"port": 1}]}
    assert prune_to_merge_schema(sent, CUSTOM).value is sent


def test_pod_and_pod_template_have_same_merge_schema() -> None:
    of_pod, of_job = merge_schema_of_kind(kind_info(POD), "v1"), merge_schema_of_kind(kind_info(JOB), "v1")
    for shape in (at(of_pod, "spec"), at(of_job, "spec", "template", "spec")):
        assert at(shape, "containers", "[]", "ports").keys == ("containerPort", "protocol")
        assert (at(shape, "volumes").merge, at(shape, "volumes").retains) == ("name", True)
        assert at(shape, "nodeSelector").is_atomic
        assert at(shape, "tolerations").keys is None
