"""JSON patches, operation by operation."""

from typing import Any

import pytest

from batchyard.apiserver.json_patch import apply_json_patch, json_patch_strict_errors
from batchyard.apiserver.request import StatusError

OBJ: dict[str, Any] = {"a": {"b": [1, 2, 3]}, "c": "d", "x/y": 1}


def apply_operations(*operations: tuple[Any, ...]) -> Any:
    names = ("op", "path", "value", "from")
    return apply_json_patch(OBJ, [dict(zip(names, operation, strict=False)) for operation in operations])


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        (("add", "/a/b/-", 4), {**OBJ, "a": {"b": [1, 2, 3, 4]}}),
        (("add", "/a/b/0", 0), {**OBJ, "a": {"b": [0, 1, 2, 3]}}),
        (("remove", "/a/b/1"), {**OBJ, "a": {"b": [1, 3]}}),
        (("remove", "/a/b/-1"), {**OBJ, "a": {"b": [1, 2]}}),
        (("add", "/a/b/-1", 4), {**OBJ, "a": {"b": [1, 2, 3, 4]}}),
        (("test", "/a/b/-3", 1), OBJ),
        (("replace", "/x~1y", 2), {**OBJ, "x/y": 2}),
        (("copy", "/e", None, "/a"), {**OBJ, "e": {"b": [1, 2, 3]}}),
        (("move", "/e", None, "/c"), {"a": {"b": [1, 2, 3]}, "x/y": 1, "e": "d"}),
        (("test", "/c", "d"), OBJ),
        (("replace", "", {"n": 1}), {"n": 1}),
    ],
)
def test_operation_changes_value_at_path(operation: tuple[Any, ...], after: Any) -> None:
    assert apply_operations(operation) == after


def test_patch_does_not_change_original_object() -> None:
    apply_operations(("remove", "/a/b"), ("add", "/c", 1))
    assert OBJ == {"a": {"b": [1, 2, 3]}, "c": "d", "x/y": 1}


def test_patch_shares_unchanged_parts_with_original() -> None:
    obj: dict[str, Any] = {"a": {"b": {}}, "c": {"d": [{}]}}
    after = apply_json_patch(
        obj, [{"op": "add", "path": "/c/d/-", "value": 1}, {"op": "add", "path": "/c/d/-", "value": 2}]
    )
    assert after == {"a": {"b": {}}, "c": {"d": [{}, 1, 2]}}
    assert after["a"] is obj["a"]
    assert after["c"]["d"][0] is obj["c"]["d"][0]


def test_patch_does_not_change_values_of_its_operations() -> None:
    patch: list[dict[str, Any]] = [{"op": "add", "path": "/e", "value": [1]}, {"op": "add", "path": "/e/-", "value": 2}]
    assert apply_json_patch(OBJ, patch)["e"] == [1, 2]
    assert patch[0]["value"] == [1]


def test_copied_value_is_independent_of_its_source() -> None:
    assert apply_operations(("copy", "/e", None, "/a"), ("add", "/e/b/-", 4))["a"] == OBJ["a"]


def test_failed_operation_returns_kubernetes_error() -> None:
    with pytest.raises(StatusError) as caught:
        apply_operations(("remove", "/n"))
    status = caught.value.response().body
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"] == "the server rejected our request due to an error in our request"


MISSING = "Unable to remove nonexistent key: {}: missing value"
NO_INTEGER = 'strconv.Atoi: parsing "{}": invalid syntax'
TOO_LARGE = str(2**63)
NO_INDEX = "Unable to access invalid index: {}: invalid index referenced"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (("add", "/a/b/9", 1), f"error in add for path: '/a/b/9': {NO_INDEX.format(9)}"),
        (("add", "/a/b/-5", 1), f"error in add for path: '/a/b/-5': {NO_INDEX.format(-5)}"),
        (
            ("add", "/a/b/x", 1),
            f"error in add for path: '/a/b/x': value was not a proper array index: 'x': {NO_INTEGER.format('x')}",
        ),
        (("add", "/q/r", 1), 'add operation does not apply: doc is missing path: "/q/r": missing value'),
        (("add", "a", 1), 'add operation does not apply: doc is missing path: "a": missing value'),
        (("add", "", {}), 'add operation does not apply: doc is missing path: "": missing value'),
        (("remove", "/n"), f"error in remove for path: '/n': {MISSING.format('n')}"),
        (("remove", "/c/d"), 'remove operation does not apply: doc is missing path: "/c/d": missing value'),
        (("remove", "/a/b/-4"), f"error in remove for path: '/a/b/-4': {NO_INDEX.format(-4)}"),
        (("replace", "/a/b/3", 1), "replace operation does not apply: doc is missing key: /a/b/3: missing value"),
        (("replace", "/q/r", 1), "replace operation does not apply: doc is missing path: /q/r: missing value"),
        (("replace", "", 1), "replace operation value must be object or array"),
        (("test", "/c", 1), "testing value /c failed: test failed"),
        (("test", "", {}), "testing value  failed: test failed"),
        (("test", "/a/b/--1", 3), "error in test for path: '/a/b/--1': strconv.Atoi: parsing \"--1\": invalid syntax"),
        (
            ("test", "/a/b/\u0663", 3),
            "error in test for path: '/a/b/\u0663': strconv.Atoi: parsing \"\u0663\": invalid syntax",
        ),
        (
            ("test", f"/a/b/{TOO_LARGE}", 3),
            f"error in test for path: '/a/b/{TOO_LARGE}': strconv.Atoi: parsing \"{TOO_LARGE}\": value out of range",
        ),
        (("move", "/e", None, "/n"), f"error in move for path: 'n': {MISSING.format('n')}"),
        (
            ("move", "/a/b", None, "/a"),
            "move operation does not apply: doc is missing destination path: /a/b: missing value",
        ),
        (("copy", "/e", None, "/q/r"), "copy operation does not apply: doc is missing from path: /q/r: missing value"),
        (("copy", "/e", None, "/a/b/7"), f"error in copy for from: '/a/b/7': {NO_INDEX.format(7)}"),
        (
            ("copy", "/e", None, None),
            "copy operation failed to decode from: operation, missing from field: missing value",
        ),
        (("add", None, 1), "add operation failed to decode path: missing value"),
        (("spin", "/a"), "Unexpected kind: spin"),
        ((None, "/a"), "Unexpected kind: unknown"),
    ],
)
def test_failed_operation_reports_message_of_go_library(operation: tuple[Any, ...], message: str) -> None:
    with pytest.raises(StatusError) as caught:
        apply_operations(operation)
    assert caught.value.details["causes"] == [{"reason": "UnexpectedServerResponse", "message": message}]


DIFFERENT = [(1, True), (0, False), (1, 1.0), (True, 1), ("1", 1), ([1], [True]), ({"a": 1}, {"a": 1.0}), (0, None)]


@pytest.mark.parametrize(("stored", "value"), DIFFERENT)
def test_operation_test_fails_for_values_of_different_types(stored: Any, value: Any) -> None:
    with pytest.raises(StatusError):
        apply_json_patch({"a": stored}, [{"op": "test", "path": "/a", "value": value}])


@pytest.mark.parametrize("value", [1, 1.5, True, None, "x", [1, [None]], {"a": {"b": None}}])
def test_operation_test_succeeds_for_equal_value(value: Any) -> None:
    apply_json_patch({"a": value}, [{"op": "test", "path": "/a", "value": value}])


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        (("test", "/n", None), OBJ),
        (("copy", "/e", None, "/n"), {**OBJ, "e": None}),
        (("replace", "/n", 1), {**OBJ, "n": 1}),
        (("add", "/a/b/+1", 9), {**OBJ, "a": {"b": [1, 9, 2, 3]}}),
        (("add", "/a/b/01", 9), {**OBJ, "a": {"b": [1, 9, 2, 3]}}),
        (("remove", "any/c"), {"a": {"b": [1, 2, 3]}, "x/y": 1}),
    ],
)
def test_operation_treats_missing_key_as_null(operation: tuple[Any, ...], after: Any) -> None:
    assert apply_operations(operation) == after


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({}, "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ("x", "json: cannot unmarshal string into Go value of type []handlers.jsonPatchOp"),
        ([1], "json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ([{"op": 1}], "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ([{"path": []}], "json: cannot unmarshal array into Go struct field jsonPatchOp.path of type string"),
    ],
)
def test_patch_that_is_not_list_of_operations_is_bad_request(patch: Any, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        apply_json_patch(OBJ, patch)
    assert (caught.value.code, str(caught.value)) == (400, f"error decoding patch: {message}")


def test_nested_copies_exceed_maximum_depth() -> None:
    deeper = [{"op": "copy", "from": "/a", "path": "/a" + "/x" * depth} for depth in range(1, 120)]
    with pytest.raises(StatusError) as caught:
        apply_json_patch({"a": {}}, deeper)
    assert caught.value.details["causes"][0]["message"] == "exceeded max depth"


def test_strict_decoding_reports_fields_of_operations() -> None:
    patch = [{"op": "add", "path": "/a", "value": 1, "form": "/b"}]
    assert json_patch_strict_errors(patch, ['duplicate field "[0].op"']) == [
        'json patch duplicate field "[0].op"',
        'json patch unknown field "[0].form"',
    ]
