"""JSON patches, operation by operation."""

from typing import Any

import pytest

from batchyard.apiserver.patch.json import json_patched
from batchyard.apiserver.request import Refused

OBJ: dict[str, Any] = {"a": {"b": [1, 2, 3]}, "c": "d", "x/y": 1}


def patched(*operations: tuple[Any, ...]) -> Any:
    names = ("op", "path", "value", "from")
    return json_patched(OBJ, [dict(zip(names, operation, strict=False)) for operation in operations])


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
def test_an_operation_changes_what_it_names(operation: tuple[Any, ...], after: Any) -> None:
    assert patched(operation) == after


def test_what_is_patched_is_not_changed_itself() -> None:
    patched(("remove", "/a/b"), ("add", "/c", 1))
    assert OBJ == {"a": {"b": [1, 2, 3]}, "c": "d", "x/y": 1}


def test_what_no_operation_touches_stays_the_very_same() -> None:
    obj: dict[str, Any] = {"a": {"b": {}}, "c": {"d": [{}]}}
    after = json_patched(
        obj, [{"op": "add", "path": "/c/d/-", "value": 1}, {"op": "add", "path": "/c/d/-", "value": 2}]
    )
    assert after == {"a": {"b": {}}, "c": {"d": [{}, 1, 2]}}
    assert after["a"] is obj["a"]
    assert after["c"]["d"][0] is obj["c"]["d"][0]


def test_what_a_patch_brings_is_not_changed_by_a_later_operation() -> None:
    patch: list[dict[str, Any]] = [{"op": "add", "path": "/e", "value": [1]}, {"op": "add", "path": "/e/-", "value": 2}]
    assert json_patched(OBJ, patch)["e"] == [1, 2]
    assert patch[0]["value"] == [1]


def test_a_copy_is_a_thing_of_its_own() -> None:
    assert patched(("copy", "/e", None, "/a"), ("add", "/e/b/-", 4))["a"] == OBJ["a"]


@pytest.mark.parametrize(
    "operation",
    [
        *(("add", "/a/b/9", 1), ("replace", "/n", 1), ("remove", "/n"), ("test", "/c", 1), ("remove", "/c/d")),
        *(("add", "/a/b/x", 1), ("move", "/a/b", None, "/a"), ("spin", "/a"), ("add", "a", 1), ("add", 1, 1)),
        *(("remove", "/a/b/-4"), ("add", "/a/b/-5", 1), ("test", "/a/b/--1", 3)),
    ],
)
def test_what_cannot_be_done_is_refused(operation: tuple[Any, ...]) -> None:
    with pytest.raises(Refused) as caught:
        patched(operation)
    assert caught.value.code == 422
