"""Keys of objects, and setters that copy."""

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


def test_a_kind_carries_its_group_but_for_the_core_group() -> None:
    assert group_kind(JOB) == "Job.batch"
    assert group_kind({"apiVersion": "v1", "kind": "Pod"}) == "Pod"


def test_a_key_prints_as_namespace_and_name() -> None:
    assert str(key_of(JOB)) == "team/a"
    assert key_of({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}) == Key("Namespace", "", "x")
    assert str(Key("Namespace", "", "x")) == "x"


def test_setting_a_path_copies_only_the_way_to_it() -> None:
    changed = with_path(JOB, ("spec", "x", "z"), 2)
    assert changed["spec"] == {"x": {"y": 1, "z": 2}}
    assert JOB["spec"] == {"x": {"y": 1}}
    assert changed["metadata"] is JOB["metadata"]


def test_setting_a_path_makes_the_way_to_it() -> None:
    assert with_path(JOB, ("status", "active"), 1)["status"] == {"active": 1}
    assert with_path({"spec": None}, ("spec", "x"), 1) == {"spec": {"x": 1}}


def test_none_removes_a_field() -> None:
    assert with_path(JOB, ("spec", "x", "y"), None)["spec"] == {"x": {}}
    assert with_path(JOB, ("status",), None) == JOB
    assert with_metadata(JOB, namespace=None)["metadata"] == {"name": "a"}


def test_metadata_and_status_are_replaced_in_a_copy() -> None:
    assert with_metadata(JOB, uid="u")["metadata"] == {"name": "a", "namespace": "team", "uid": "u"}
    assert with_status(JOB, {"active": 1})["status"] == {"active": 1}
    assert "status" not in JOB


def test_labels_and_annotations_may_be_absent() -> None:
    obj = with_metadata(JOB, labels={"x": "1"}, annotations={"y": "2"})
    assert (label(obj, "x"), label(obj, "y"), label(JOB, "x")) == ("1", None, None)
    assert (annotation(obj, "y"), annotation(obj, "x"), annotation(JOB, "y")) == ("2", None, None)


def test_one_owner_is_the_controller() -> None:
    owners = [{"kind": "A", "controller": False}, {"kind": "B", "controller": True}]
    assert controller_of(with_metadata(JOB, ownerReferences=owners)) == owners[1]
    assert controller_of(with_metadata(JOB, ownerReferences=owners[:1])) is None
    assert controller_of(JOB) is None
