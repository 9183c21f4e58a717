"""Custom objects: pruning, defaults and validation."""

from typing import Any

import pytest

from unit.apiserver.crd.rockets import ROCKETS, DefinitionApi, definition, rocket, schema_of, space, version_of

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "role": {**TEXT, "default": "pilot"}}}

FAULTS: list[tuple[dict[str, Any], Any, str]] = [
    (WHOLE, "x", 'Invalid value: "string": spec.at in body must be of type integer: "string"'),
    (WHOLE, 1.5, 'Invalid value: "number": spec.at in body must be of type integer: "number"'),
    (TEXT, 1, 'Invalid value: "integer": spec.at in body must be of type string: "integer"'),
    (WHOLE, 10**400, 'spec.at in body must be of type integer: "number"'),
    ({"type": "number", "multipleOf": 0.5}, 10**400, 'spec.at in body must be of type number: "number"'),
    ({"x-kubernetes-int-or-string": True}, True, "must be of type integer,string"),
    ({**TEXT, "enum": ["a", "b"]}, "c", 'Unsupported value: "c": supported values: "a", "b"'),
    ({**TEXT, "maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
    ({**TEXT, "minLength": 2}, "a", 'Invalid value: "a": spec.at in body should be at least 2 chars long'),
    ({**TEXT, "pattern": "^a+$"}, "b", "Invalid value: \"b\": spec.at in body should match '^a+$'"),
    ({**TEXT, "format": "date-time"}, "soon", 'spec.at in body must be of type date-time: "soon"'),
    ({**TEXT, "format": "ipv4"}, "1.2.3", 'spec.at in body must be of type ipv4: "1.2.3"'),
    ({**WHOLE, "maximum": 5}, 6, "Invalid value: 6: spec.at in body should be less than or equal to 5"),
    ({**WHOLE, "maximum": 5, "exclusiveMaximum": True}, 5, "spec.at in body should be less than 5"),
    ({**WHOLE, "minimum": 5}, 4, "spec.at in body should be greater than or equal to 5"),
    ({**WHOLE, "multipleOf": 2}, 3, "spec.at in body should be a multiple of 2"),
    ({"type": "array", "items": TEXT, "maxItems": 1}, ["a", "b"], "Too many: 2: must have at most 1 item"),
    ({"type": "array", "items": TEXT, "minItems": 1}, [], "spec.at in body should have at least 1 items"),
    ({**WHOLE, "anyOf": [{"minimum": 5}, {"maximum": 1}]}, 3, '"spec.at" must validate at least one schema (anyOf)'),
    ({**WHOLE, "oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "one and only one schema (oneOf). Found 2 valid"),
    ({**WHOLE, "not": {"enum": [3]}}, 3, '"spec.at" must not validate the schema (not)'),
]


@pytest.mark.parametrize(("schema", "value", "problem"), FAULTS)
def test_invalid_value_is_reported_with_kubernetes_message(schema: dict[str, Any], value: Any, problem: str) -> None:
    reported = space(schema_of(at=schema)).faults(rocket(at=value))[0]
    assert reported.startswith("spec.at: ")
    assert problem in reported


def test_duplicate_list_items_are_rejected() -> None:
    crew = {"type": "array", "items": NAMED, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    stages = {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"}
    reported = space(schema_of(crew=crew, stages=stages)).faults(
        rocket(crew=[{"name": "a"}, {"name": "a"}, {}], stages=["x", "y", "x"])
    )
    assert reported == [
        "spec.crew[2].name: Required value",
        'spec.crew[1]: Duplicate value: {"name":"a"}',
        'spec.stages[2]: Duplicate value: "x"',
    ]


def test_unknown_fields_are_pruned_unless_preserved() -> None:
    open_part = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"own": NAMED}}
    labels = {"type": "object", "additionalProperties": NAMED}
    api = space(schema_of(open=open_part, labels=labels))
    sent = rocket(
        gone=1, open={"kept": [{"a": 1}], "own": {"name": "x", "gone": 1}}, labels={"l": {"name": "y", "z": 1}}
    )
    assert api.post(ROCKETS, sent)["spec"] == {
        "open": {"kept": [{"a": 1}], "own": {"name": "x", "role": "pilot"}},
        "labels": {"l": {"name": "y", "role": "pilot"}},
    }


def test_unknown_fields_return_warnings_or_strict_decoding_error() -> None:
    inner = {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}}
    api = space(schema_of(inner=inner))
    inner_sent = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "nam": "y"}, "data": 2}
    reported = [f'unknown field "spec.{field}"' for field in ("gone", "inner.metadata.nam", "inner.data")]
    sent = rocket(gone=1, inner=inner_sent)
    assert [*api.ask("POST", ROCKETS, sent).warnings] == reported
    assert api.get(f"{ROCKETS}/ariane")["spec"]["inner"]["metadata"] == {"name": "x"}
    strict = api.ask("POST", f"{ROCKETS}?fieldValidation=Strict", sent)
    assert (strict.code, "strict decoding error" in strict.body["message"]) == (400, True)


def test_embedded_object_keeps_type_and_metadata() -> None:
    inner = {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}}
    sent = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"gone": 1}, "data": 2}
    stored = space(schema_of(inner=inner)).post(ROCKETS, rocket(inner=sent))
    assert stored["spec"]["inner"] == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}


def test_defaults_are_set_and_null_values_dropped() -> None:
    crew = {"type": "array", "items": NAMED, "default": [{"name": "ann"}]}
    api = space(schema_of(crew=crew, note={**TEXT, "nullable": True}, gone=TEXT, count={**WHOLE, "default": 2}))
    spec = api.post(ROCKETS, rocket(note=None, gone=None, count=None))["spec"]
    assert spec == {"note": None, "count": 2, "crew": [{"name": "ann", "role": "pilot"}]}


def test_custom_object_metadata_is_validated() -> None:
    api = space(schema_of())
    sent = rocket("No Name")
    assert "metadata.name: Invalid value" in api.faults(sent)[0]
    sent["metadata"] = {"name": "ok", "labels": {"a": 1}}
    assert api.faults(sent)[0].startswith("metadata.labels[a]")


def test_each_version_prunes_and_defaults_by_its_own_schema() -> None:
    api, older = DefinitionApi(), schema_of(engines={**WHOLE, "default": 1})
    api.define(definition(version_of(schema_of(engines=WHOLE, orbit=TEXT)), version_of(older, "v1beta1")))
    beta = ROCKETS.replace("v1", "v1beta1")
    assert api.post(beta, rocket(version="v1beta1"))["spec"] == {"engines": 1}
    api.ask("PATCH", f"{ROCKETS}/ariane", {"spec": {"orbit": "low"}}, headers={"content-type": MERGE})
    assert api.get(f"{ROCKETS}/ariane")["spec"] == {"engines": 1, "orbit": "low"}
    assert api.get(f"{beta}/ariane")["spec"] == {"engines": 1}
    assert api.get(f"{beta}/ariane")["apiVersion"] == "space.example.com/v1beta1"


MERGE = "application/merge-patch+json"


def test_status_is_written_through_status_subresource_if_defined() -> None:
    patch = {"spec": {"engines": 2}, "status": {"up": True}}
    with_part = space(schema_of(engines=WHOLE), subresources={"status": {}})
    without = space(schema_of(engines=WHOLE))
    for api in (with_part, without):
        api.post(ROCKETS, rocket())
        api.ask("PATCH", f"{ROCKETS}/ariane", patch, headers={"content-type": MERGE})
    seen = with_part.get(f"{ROCKETS}/ariane")
    assert ("status" in seen, seen["metadata"]["generation"]) == (False, 2)
    assert without.get(f"{ROCKETS}/ariane")["status"] == {"up": True}
    with_part.ask("PATCH", f"{ROCKETS}/ariane/status", {"status": {"up": 1}}, headers={"content-type": MERGE})
    seen = with_part.get(f"{ROCKETS}/ariane")
    assert (seen["status"], seen["metadata"]["generation"]) == ({"up": 1}, 2)
    assert without.ask("GET", f"{ROCKETS}/ariane/status").code == 404
