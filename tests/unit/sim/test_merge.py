"""A manifest that is applied again: changed fields are written, and fields of other writers stay."""

from typing import Any

import pytest

from batchyard.sim.world import merge_applied


@pytest.mark.parametrize(
    ("stored", "last", "new", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, {"a": 1}, {"a": 1, "b": 2}, id="a field not in the manifest stays"),
        pytest.param({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}, id="a changed field is written"),
        pytest.param({"a": 1}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, id="a new field is written"),
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}, {"a": 1}, id="a removed field is removed"),
        pytest.param({"a": 9}, {"a": 1}, {"a": 1}, {"a": 9}, id="a change by another writer stays"),
        pytest.param({"a": 9}, {"a": 1}, {"a": 2}, {"a": 2}, id="a change in the manifest overrides another writer"),
        pytest.param({}, {"a": 1}, {"a": 1}, {}, id="a removal by another writer stays"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"x": 3}}, {"a": {"x": 3, "y": 2}}, id="by key"),
        pytest.param({"a": {"x": 1}}, {"a": {"x": 1}}, {"a": {}}, {"a": {}}, id="a nested field is removed"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, {"a": [3]}, {"a": [3]}, id="lists are replaced as a whole"),
        pytest.param({"a": [1]}, {"a": [1]}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="a list becomes a mapping"),
        pytest.param({"a": 1, "b": {"x": 1}}, {}, {"b": {"y": 2}}, {"a": 1, "b": {"x": 1, "y": 2}}, id="first apply"),
    ],
)
def test_merge_writes_only_changed_fields(
    stored: dict[str, Any], last: dict[str, Any], new: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(stored)
    assert merge_applied(stored, last, new) == expected
    assert repr(stored) == before
