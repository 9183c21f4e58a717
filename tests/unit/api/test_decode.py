"""Decoding of objects for storage: kind, structure, version, defaults, rules."""

from typing import Any

import pytest

import make
from batchyard.api.manifests import decode, decode_unvalidated
from batchyard.api.meta import Obj
from batchyard.api.validation import validate_status
from object_edits import GONE, with_edits

KUEUE = "kueue.x-k8s.io"
OLD_QUEUE: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ClusterQueue",
    "metadata": {"name": "team"},
    "spec": {"cohort": "all", "flavorFungibility": {"whenCanBorrow": "Borrow"}},
}
TASK: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}},
}


def fault_texts(obj: Any) -> list[str]:
    """Return all faults as strings; no object is returned in this case."""
    decoded = decode(obj)
    assert decoded.obj is None
    return [str(fault) for fault in decoded.faults]


def stored_object(obj: Obj) -> dict[str, Any]:
    """Return the object as stored."""
    decoded = decode(obj)
    assert decoded.faults == []
    assert decoded.obj is not None
    return decoded.obj


def test_old_version_is_converted_to_storage_version() -> None:
    queue = stored_object(OLD_QUEUE)
    assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert queue["spec"]["cohortName"] == "all"
    assert queue["spec"]["flavorFungibility"]["whenCanBorrow"] == "MayStopSearch"


def test_deprecated_version_returns_upstream_warning() -> None:
    assert decode(OLD_QUEUE).warnings == ["This version is deprecated. Use v1beta2 instead."]
    assert decode(with_edits(OLD_QUEUE, {"spec": {}, "apiVersion": "kueue.x-k8s.io/v1beta2"})).warnings == []


def test_schema_and_webhook_defaults_are_set() -> None:
    assert stored_object(OLD_QUEUE)["spec"]["queueingStrategy"] == "BestEffortFIFO"
    assert stored_object(OLD_QUEUE)["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert stored_object(TASK)["spec"]["backoffLimit"] == 6


def test_decode_does_not_modify_input() -> None:
    before = with_edits(OLD_QUEUE, {})
    stored_object(before)
    assert before == OLD_QUEUE


def test_decode_is_idempotent() -> None:
    for obj in (OLD_QUEUE, TASK):
        assert stored_object(stored_object(obj)) == stored_object(obj)


def test_object_without_namespace_gets_default_namespace() -> None:
    assert stored_object(TASK)["metadata"]["namespace"] == "default"
    decoded = decode(TASK, namespace="team")
    assert decoded.obj is not None
    assert decoded.obj["metadata"]["namespace"] == "team"
    assert stored_object(with_edits(TASK, {"metadata.namespace": "a"}))["metadata"]["namespace"] == "a"


def test_cluster_scoped_object_drops_namespace_with_warning() -> None:
    decoded = decode(with_edits(OLD_QUEUE, {"metadata.namespace": "a"}))
    assert decoded.obj is not None
    assert "namespace" not in decoded.obj["metadata"]
    assert decoded.warnings[1:] == ["metadata.namespace: ClusterQueue is cluster-scoped; the namespace a is ignored"]


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ({"kind": "Jbo"}, 'kind: the kind "Jbo" of "batch/v1" is not known; did you mean Job (batch/v1)?'),
        (
            {"kind": "Gadget", "apiVersion": "apps/v1"},
            'kind: the kind "Gadget" of "apps/v1" is not known; check kind and apiVersion, or remove the document',
        ),
        ({"apiVersion": "v1"}, 'apiVersion: "v1" has no kind "Job"; use batch/v1'),
        (
            {"kind": "Cohort", "apiVersion": "kueue.x-k8s.io/v1alpha1"},
            f'apiVersion: "{KUEUE}/v1alpha1" has no kind "Cohort"; use {KUEUE}/v1beta2 or {KUEUE}/v1beta1',
        ),
        ({"apiVersion": GONE}, "apiVersion: Required value; set the field to batch/v1"),
        (
            {"apiVersion": GONE, "kind": "X"},
            "apiVersion: Required value; set the field to group/version, such as batch/v1",
        ),
        ({"kind": ""}, "kind: Required value; set the field to the kind of the object, such as Job"),
        (
            {"kind": ["Job"]},
            "kind: Invalid value: a list: must be a string; set the field to the kind of the object, such as Job",
        ),
    ],
    ids=str,
)
def test_unknown_kind_is_only_reported_fault(edits: dict[str, Any], fault: str) -> None:
    assert fault_texts(with_edits({**TASK, "spec": {"zzz": 1}}, edits)) == [fault]


@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ([], "a list"), ("Job", '"Job"'), (7, "7")], ids=str)
def test_value_that_is_no_mapping_is_rejected(value: object, shown: str) -> None:
    assert fault_texts(value) == [f"{shown} is not an object; write apiVersion, kind, metadata and spec"]


def test_structure_and_name_faults_are_reported_together() -> None:
    paths = [fault.path for fault in decode(with_edits(TASK, {"spec.zzz": 1, "metadata.name": "No Name"})).faults]
    assert paths == ["spec.zzz", "metadata.name"]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "1a"}, "spec": {"zzz": 1}}
    assert [fault.path for fault in decode(service).faults] == ["spec.zzz", "metadata.name"]


def test_cross_field_rules_are_checked_for_valid_structure() -> None:
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "gpu", "nominalQuota": 1}]}]}
    paths = [fault.path for fault in decode(with_edits(OLD_QUEUE, {"spec.resourceGroups": [group]})).faults]
    assert paths == ["spec.resourceGroups[0].flavors[0].resources[0].name"]


def test_decode_keeps_given_uid_and_creation_timestamp() -> None:
    given = {"metadata.uid": "u-1", "metadata.creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata = stored_object(with_edits(TASK, given))["metadata"]
    assert (metadata["uid"], metadata["creationTimestamp"]) == ("u-1", "2026-01-01T00:00:00Z")


def test_rule_of_storage_version_applies_to_old_version() -> None:
    check = {"apiVersion": f"{KUEUE}/v1beta1", "kind": "AdmissionCheck", "metadata": {"name": "c"}}
    assert fault_texts({**check, "spec": {"controllerName": ""}})[0].startswith("spec.controllerName: Invalid value")


def test_empty_namespace_is_treated_as_absent() -> None:
    assert "namespace" not in stored_object(with_edits(OLD_QUEUE, {"metadata.namespace": ""}))["metadata"]
    assert stored_object(with_edits(TASK, {"metadata.namespace": ""}))["metadata"]["namespace"] == "default"


WORKLOAD: dict[str, Any] = {
    "apiVersion": f"{KUEUE}/v1beta2",
    "kind": "Workload",
    "metadata": {"name": "w", "namespace": "default"},
    "spec": {"podSets": [{"name": "a", "count": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}]},
}
BAD = {"spec.podSets": "none"}


def test_unchanged_part_of_old_object_is_not_validated_again() -> None:
    bad = with_edits(WORKLOAD, BAD)
    status = {"conditions": [make.condition("Finished")]}
    assert decode_unvalidated({**bad, "status": status}, "default", bad).obj == {**bad, "status": status}


def test_copied_part_of_old_object_is_validated_again() -> None:
    bad = with_edits(WORKLOAD, BAD)
    assert decode_unvalidated({**bad, "spec": {**bad["spec"]}}, "default", bad).obj is None


def test_status_update_is_checked_by_validate_status_only() -> None:
    valid = stored_object(WORKLOAD)
    reserved = {**valid, "status": {"conditions": [make.condition("QuotaReserved")]}}
    assert [fault.path for fault in decode(reserved).faults] == ["status.admission"]
    assert decode_unvalidated(reserved, "default").obj is not None
    assert [fault.path for fault in validate_status(reserved, valid)] == ["status.admission"]


def test_missing_required_field_is_rejected_despite_old_object() -> None:
    valid = stored_object(TASK)
    assert (
        decode_unvalidated({field: valid[field] for field in ("apiVersion", "kind", "spec")}, "default", valid).obj
        is None
    )


def test_null_label_adds_no_fault_beside_other_faults() -> None:
    labeled = {**TASK, "metadata": {"name": "a", "labels": {"team": None}}}
    assert [fault.path for fault in decode({**labeled, "speck": {}}).faults] == ["speck"]


def test_queue_name_annotation_returns_warning() -> None:
    name = "kueue.x-k8s.io/queue-name"
    noted = {**TASK, "metadata": {"name": "train", "annotations": {name: "main"}}}
    (warning,) = decode(noted).warnings
    assert f"set the label {name}: main" in warning
    assert decode({**TASK, "metadata": {"name": "t", "annotations": {name: "a"}, "labels": {name: "a"}}}).warnings == []
    assert decode(TASK).warnings == []
