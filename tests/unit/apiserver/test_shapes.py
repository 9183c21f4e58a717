"""What a schema says of merging, for the tables' kinds and for those of CustomResourceDefinitions."""

from typing import Any

import pytest

from batchyard.api.scheme import JOB, POD, kind_info
from batchyard.apiserver.patch import MergeSchema, shape_of_kind, shape_of_schema
from batchyard.apiserver.serialization import pruned

TEXT = {"type": "string"}
PORT = {"properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}
SCHEMA: dict[str, Any] = {
    "properties": {
        "ports": {
            "items": PORT,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
        },
        "names": {"items": TEXT, "x-kubernetes-list-type": "set"},
        "steps": {"items": PORT, "x-kubernetes-list-type": "atomic"},
        "selector": {"properties": {"app": TEXT}, "x-kubernetes-map-type": "atomic"},
        "labels": {"additionalProperties": TEXT},
        "open": {"properties": {"a": TEXT}, "x-kubernetes-preserve-unknown-fields": True},
    }
}
CUSTOM = shape_of_schema(SCHEMA)


def at(shape: MergeSchema, *path: str) -> MergeSchema:
    """The shape of a place; `[]` are the items of a list."""
    for name in path:
        shape = shape.item if name == "[]" else shape.below(name)
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
def test_a_schema_says_what_has_owners_of_its_own(field: str, keys: tuple[str, ...] | None, is_atomic: bool) -> None:
    shape = at(CUSTOM, field)
    assert (shape.keys, shape.is_atomic) == (keys, is_atomic)


def test_a_key_may_have_a_default() -> None:
    assert at(CUSTOM, "ports", "[]", "protocol").default == "TCP"


def test_what_is_not_in_a_schema_is_dropped_but_where_all_may_be() -> None:
    sent = {"labels": {"a": "b"}, "open": {"b": 1}, "steps": [{"port": 1, "prt": 2}], "selector": {"x": "y"}, "z": 1}
    known, faults = pruned(sent, CUSTOM)
    assert known == {"labels": {"a": "b"}, "open": {"b": 1}, "steps": [{"port": 1}], "selector": {}}
    assert faults == ['unknown field "steps[0].prt"', 'unknown field "selector.x"', 'unknown field "z"']


def test_what_has_nothing_unknown_is_the_same() -> None:
    sent = {"labels": {"a": "b"}, "steps": [{"port": 1}]}
    assert pruned(sent, CUSTOM).value is sent


def test_pod_templates_are_merged_alike_wherever_they_are() -> None:
    of_pod, of_job = shape_of_kind(kind_info(POD), "v1"), shape_of_kind(kind_info(JOB), "v1")
    for shape in (at(of_pod, "spec"), at(of_job, "spec", "template", "spec")):
        assert at(shape, "containers", "[]", "ports").keys == ("containerPort", "protocol")
        assert (at(shape, "volumes").merge, at(shape, "volumes").retains) == ("name", True)
        assert at(shape, "nodeSelector").is_atomic
        assert at(shape, "tolerations").keys is None
