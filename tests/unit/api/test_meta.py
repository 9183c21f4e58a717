"""Keys of objects, and setters that return copies."""

from batchyard.api.meta import (
    Key,
    annotation,
    controller_of,
    group_kind,
    key_of,
    label,
    with_metadata,
    with_path,
    with_status,
)

JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "team"}, "spec": {"x": {"y": 1}}}


def test_group_kind_contains_group_except_for_core_group() -> None:
    assert group_kind(JOB) == "Job.batch"
    assert group_kind({"apiVersion": "v1", "kind": "Pod"}) == "Pod"


def test_key_prints_as_namespace_and_name() -> None:
    assert str(key_of(JOB)) == "team/a"
    assert key_of({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}) == Key("Namespace", "", "x")
    assert str(Key("Namespace", "", "x")) == "x"


def test_with_path_copies_only_parents_of_path() -> None:
    changed = with_path(JOB, ("spec", "x", "z"), 2)
    assert changed["spec"] == {"x": {"y": 1, "z": 2}}
    assert JOB["spec"] == {"x": {"y": 1}}
    assert changed["metadata"] is JOB["metadata"]


def test_with_path_creates_missing_parents() -> None:
    assert with_path(JOB, ("status", "active"), 1)["status"] == {"active": 1}
    assert with_path({"spec": None}, ("spec", "x"), 1) == {"spec": {"x": 1}}


def test_with_path_removes_field_set_to_none() -> None:
    assert with_path(JOB, ("spec", "x", "y"), None)["spec"] == {"x": {}}
    assert with_path(JOB, ("status",), None) == JOB
    assert with_metadata(JOB, namespace=None)["metadata"] == {"name": "a"}


def test_with_metadata_and_with_status_return_copy() -> None:
    assert with_metadata(JOB, uid="u")["metadata"] == {"name": "a", "namespace": "team", "uid": "u"}
    assert with_status(JOB, {"active": 1})["status"] == {"active": 1}
    assert "status" not in JOB


def test_label_and_annotation_return_none_if_absent() -> None:
    obj = with_metadata(JOB, labels={"x": "1"}, annotations={"y": "2"})
    assert (label(obj, "x"), label(obj, "y"), label(JOB, "x")) == ("1", None, None)
    assert (annotation(obj, "y"), annotation(obj, "x"), annotation(JOB, "y")) == ("2", None, None)


def test_controller_of_returns_owner_with_controller_flag() -> None:
    owners = [{"kind": "A", "controller": False}, {"kind": "B", "controller": True}]
    assert controller_of(with_metadata(JOB, ownerReferences=owners)) == owners[1]
    assert controller_of(with_metadata(JOB, ownerReferences=owners[:1])) is None
    assert controller_of(JOB) is None
