"""From an object as written to the object as held: kind, structure, version, defaults, rules."""

from typing import Any

import pytest

import make
from batchyard.api.manifests import complete, decode
from batchyard.api.meta import Obj
from batchyard.api.validation import validate_status
from edits import GONE, edited

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


def reported(obj: Any) -> list[str]:
    """All faults as texts; there is no object then."""
    decoded = decode(obj)
    assert decoded.obj is None
    return [str(fault) for fault in decoded.faults]


def held(obj: Obj) -> dict[str, Any]:
    """The object as held."""
    decoded = decode(obj)
    assert decoded.faults == []
    assert decoded.obj is not None
    return decoded.obj


def test_an_old_version_is_held_in_the_storage_version_with_its_meaning() -> None:
    queue = held(OLD_QUEUE)
    assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert queue["spec"]["cohortName"] == "all"
    assert queue["spec"]["flavorFungibility"]["whenCanBorrow"] == "MayStopSearch"


def test_a_deprecated_version_warns_in_upstreams_words() -> None:
    assert decode(OLD_QUEUE).warnings == ["This version is deprecated. Use v1beta2 instead."]
    assert decode(edited(OLD_QUEUE, {"spec": {}, "apiVersion": "kueue.x-k8s.io/v1beta2"})).warnings == []


def test_structural_defaults_and_those_of_webhooks_are_filled_in() -> None:
    assert held(OLD_QUEUE)["spec"]["queueingStrategy"] == "BestEffortFIFO"
    assert held(OLD_QUEUE)["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert held(TASK)["spec"]["backoffLimit"] == 6


def test_what_is_given_is_not_changed() -> None:
    before = edited(OLD_QUEUE, {})
    held(before)
    assert before == OLD_QUEUE


def test_what_is_held_is_held_again_as_it_is() -> None:
    for obj in (OLD_QUEUE, TASK):
        assert held(held(obj)) == held(obj)


def test_objects_without_a_namespace_are_in_the_default_one() -> None:
    assert held(TASK)["metadata"]["namespace"] == "default"
    decoded = decode(TASK, namespace="team")
    assert decoded.obj is not None
    assert decoded.obj["metadata"]["namespace"] == "team"
    assert held(edited(TASK, {"metadata.namespace": "a"}))["metadata"]["namespace"] == "a"


def test_kinds_without_namespaces_drop_one_with_a_warning() -> None:
    decoded = decode(edited(OLD_QUEUE, {"metadata.namespace": "a"}))
    assert decoded.obj is not None
    assert "namespace" not in decoded.obj["metadata"]
    assert decoded.warnings[1:] == ["metadata.namespace: ClusterQueue has no namespace; a is ignored"]


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ({"kind": "Jbo"}, 'kind: the kind "Jbo" of "batch/v1" is not known; did you mean Job (batch/v1)?'),
        (
            {"kind": "Gadget", "apiVersion": "apps/v1"},
            'kind: the kind "Gadget" of "apps/v1" is not known; remove the document, or apply it elsewhere',
        ),
        ({"apiVersion": "v1"}, 'apiVersion: there is no kind "Job" in "v1"; use batch/v1'),
        (
            {"kind": "Cohort", "apiVersion": "kueue.x-k8s.io/v1alpha1"},
            f'apiVersion: there is no kind "Cohort" in "{KUEUE}/v1alpha1"; use {KUEUE}/v1beta2 or {KUEUE}/v1beta1',
        ),
        ({"apiVersion": GONE}, "apiVersion: Required value; set it to batch/v1"),
        ({"apiVersion": GONE, "kind": "X"}, "apiVersion: Required value; set it to group/version, such as batch/v1"),
        ({"kind": ""}, "kind: Required value; set it to the kind of the object, such as Job"),
        (
            {"kind": ["Job"]},
            "kind: Invalid value: a list: must be a string; set it to the kind of the object, such as Job",
        ),
    ],
    ids=str,
)
def test_an_unknown_kind_is_the_only_fault(edits: dict[str, Any], fault: str) -> None:
    assert reported(edited({**TASK, "spec": {"zzz": 1}}, edits)) == [fault]


@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ([], "a list"), ("Job", '"Job"'), (7, "7")], ids=str)
def test_what_is_no_object_is_told_so(value: object, shown: str) -> None:
    assert reported(value) == [f"{shown} is no object; write fields: apiVersion, kind, metadata, spec"]


def test_structure_and_names_are_told_at_once() -> None:
    paths = [fault.path for fault in decode(edited(TASK, {"spec.zzz": 1, "metadata.name": "No Name"})).faults]
    assert paths == ["spec.zzz", "metadata.name"]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "1a"}, "spec": {"zzz": 1}}
    assert [fault.path for fault in decode(service).faults] == ["spec.zzz", "metadata.name"]


def test_rules_between_fields_are_checked_once_the_structure_is_sound() -> None:
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "gpu", "nominalQuota": 1}]}]}
    paths = [fault.path for fault in decode(edited(OLD_QUEUE, {"spec.resourceGroups": [group]})).faults]
    assert paths == ["spec.resourceGroups[0].flavors[0].resources[0].name"]


def test_objects_of_a_scenario_keep_their_uid_and_creation_time() -> None:
    given = {"metadata.uid": "u-1", "metadata.creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata = held(edited(TASK, given))["metadata"]
    assert (metadata["uid"], metadata["creationTimestamp"]) == ("u-1", "2026-01-01T00:00:00Z")


def test_what_only_the_storage_version_refuses_is_told() -> None:
    check = {"apiVersion": f"{KUEUE}/v1beta1", "kind": "AdmissionCheck", "metadata": {"name": "c"}}
    assert reported({**check, "spec": {"controllerName": ""}})[0].startswith("spec.controllerName: Invalid value")


def test_an_empty_namespace_is_none() -> None:
    assert "namespace" not in held(edited(OLD_QUEUE, {"metadata.namespace": ""}))["metadata"]
    assert held(edited(TASK, {"metadata.namespace": ""}))["metadata"]["namespace"] == "default"


WORKLOAD: dict[str, Any] = {
    "apiVersion": f"{KUEUE}/v1beta2",
    "kind": "Workload",
    "metadata": {"name": "w", "namespace": "default"},
    "spec": {"podSets": [{"name": "a", "count": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}]},
}
BAD = {"spec.podSets": "none"}


def test_what_is_the_very_same_in_a_sound_object_is_not_looked_at_again() -> None:
    bad = edited(WORKLOAD, BAD)
    status = {"conditions": [make.condition("Finished")]}
    assert complete({**bad, "status": status}, "default", bad).obj == {**bad, "status": status}


def test_all_else_is() -> None:
    bad = edited(WORKLOAD, BAD)
    assert complete({**bad, "spec": {**bad["spec"]}}, "default", bad).obj is None


def test_rules_of_a_status_that_takes_the_place_of_another_are_those_of_the_change() -> None:
    sound = held(WORKLOAD)
    reserved = {**sound, "status": {"conditions": [make.condition("QuotaReserved")]}}
    assert [fault.path for fault in decode(reserved).faults] == ["status.admission"]
    assert complete(reserved, "default").obj is not None
    assert [fault.path for fault in validate_status(reserved, sound)] == ["status.admission"]


def test_what_must_be_said_is_missed_beside_what_is_known() -> None:
    sound = held(TASK)
    assert complete({field: sound[field] for field in ("apiVersion", "kind", "spec")}, "default", sound).obj is None


def test_a_label_without_a_value_is_empty_whatever_else_is_wrong() -> None:
    labelled = {**TASK, "metadata": {"name": "a", "labels": {"team": None}}}
    assert [fault.path for fault in decode({**labelled, "speck": {}}).faults] == ["speck"]


def test_a_queue_that_is_given_as_an_annotation_is_warned_of() -> None:
    name = "kueue.x-k8s.io/queue-name"
    noted = {**TASK, "metadata": {"name": "train", "annotations": {name: "main"}}}
    (warning,) = decode(noted).warnings
    assert f"set the label {name}: main" in warning
    assert decode({**TASK, "metadata": {"name": "t", "annotations": {name: "a"}, "labels": {name: "a"}}}).warnings == []
    assert decode(TASK).warnings == []
