"""Conversion of Kueue's objects between API versions."""

import json
from typing import Any

import pytest

import make
from batchyard.api.conversion import (
    NEW_ONLY_ANNOTATION,
    OLD_API_VERSION,
    OLD_ONLY_ANNOTATION,
    STORAGE_API_VERSION,
    SharedParts,
    from_storage,
    to_storage,
)
from object_edits import GONE, with_edits

Obj = dict[str, Any]


def old(kind: str, spec: Obj | None = None, status: Obj | None = None, **annotations: str) -> Obj:
    """An object of v1beta1."""
    metadata = {"name": "it", **({"annotations": annotations} if annotations else {})}
    parts = {name: part for name, part in (("spec", spec), ("status", status)) if part is not None}
    return {"apiVersion": OLD_API_VERSION, "kind": kind, "metadata": metadata, **parts}


def annotation_value(obj: Obj, annotation: str) -> Any:
    """Return the parsed value of an annotation, or None without it."""
    text = obj["metadata"].get("annotations", {}).get(annotation)
    return None if text is None else json.loads(text)


PROFILE = {"clusterProfileRef": {"name": "p"}}
WPC = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
POD_CLASS = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
DOMAINS = [{"values": ["b1", "h1"], "count": 2}, {"values": ["b1", "h2"], "count": 2}]
SLICES = [
    {
        "domainCount": 2,
        "podCounts": {"universal": 2},
        "valuesPerLevel": [{"universal": "b1"}, {"individual": {"prefix": "h", "roots": ["1", "2"]}}],
    }
]


def status_with_assignment(places: Obj) -> Obj:
    """Return a status with the topology assignment of a pod set."""
    return {"admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "topologyAssignment": places}]}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            old("ClusterQueue", {"cohort": "all", "queueingStrategy": "StrictFIFO"}),
            {"spec": {"cohortName": "all", "queueingStrategy": "StrictFIFO"}},
            id="the cohort of a ClusterQueue",
        ),
        pytest.param(
            old("LocalQueue", {}, {"flavorUsage": [{"name": "f"}], "pendingWorkloads": 1}),
            {"status": {"flavorsUsage": [{"name": "f"}], "pendingWorkloads": 1}},
            id="the usage of a LocalQueue",
        ),
        pytest.param(
            old(
                "Workload", {"priorityClassName": "high", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"}
            ),
            {"spec": {"priorityClassRef": WPC}},
            id="a class of Workloads",
        ),
        pytest.param(
            old("Workload", {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass"}),
            {"spec": {"priorityClassRef": POD_CLASS}},
            id="a class of pods",
        ),
        pytest.param(
            old("Workload", {}, {"accumulatedPastExexcutionTimeSeconds": 7}),
            {"status": {"accumulatedPastExecutionTimeSeconds": 7}},
            id="the time a Workload ran",
        ),
        pytest.param(
            old("Workload", {}, status_with_assignment({"levels": ["block", "host"], "domains": DOMAINS})),
            {"status": status_with_assignment({"levels": ["block", "host"], "slices": SLICES})},
            id="the places of pods",
        ),
        pytest.param(
            old("MultiKueueCluster", {"kubeConfig": {"location": "s", "locationType": "Secret"}}),
            {"spec": {"clusterSource": {"kubeConfig": {"location": "s", "locationType": "Secret"}}}},
            id="how to reach a cluster",
        ),
        pytest.param(
            old("MultiKueueCluster", {"kubeConfig": {"location": "", "locationType": "Secret"}, **PROFILE}),
            {"spec": {"clusterSource": PROFILE}},
            id="the profile of a cluster",
        ),
        pytest.param(old("Topology", {"levels": []}), {"spec": {"levels": []}}, id="identical fields"),
    ],
)
def test_renamed_fields_are_converted_in_both_directions(before: Obj, after: Obj) -> None:
    stored = to_storage(before)
    assert stored["apiVersion"] == STORAGE_API_VERSION
    assert {part: stored[part] for part in after} == after
    assert annotation_value(stored, OLD_ONLY_ANNOTATION) is None
    assert from_storage(stored, OLD_API_VERSION) == before


@pytest.mark.parametrize(
    ("before", "after", "original"),
    [
        pytest.param(
            old("ClusterQueue", {"admissionChecks": ["a", "b"]}),
            {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "a"}, {"name": "b"}]}}},
            {"spec.admissionChecksStrategy": {"admissionChecks": ["a", "b"]}},
            id="checks by name",
        ),
        pytest.param(
            old("ClusterQueue", {"flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}}),
            {"spec": {"flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}}},
            {
                "spec.flavorFungibility.whenCanBorrow": {"whenCanBorrow": "Borrow"},
                "spec.flavorFungibility.whenCanPreempt": {"whenCanPreempt": "Preempt"},
            },
            id="old enum values",
        ),
        pytest.param(
            old("ClusterQueue", {}, {"pendingWorkloadsStatus": {"lastChangeTime": "t"}, "pendingWorkloads": 1}),
            {"status": {"pendingWorkloads": 1}},
            {"status.pendingWorkloadsStatus": {"pendingWorkloadsStatus": {"lastChangeTime": "t"}}},
            id="pending workloads status",
        ),
        pytest.param(
            old("Cohort", {}, {"fairSharing": {"weightedShare": 1, "admissionFairSharingStatus": {}}}),
            {"status": {"fairSharing": {"weightedShare": 1}}},
            {"status.fairSharing.admissionFairSharingStatus": {"admissionFairSharingStatus": {}}},
            id="the share of a Cohort",
        ),
        pytest.param(
            old("LocalQueue", {}, {"flavors": [{"name": "f"}]}),
            {"status": {}},
            {"status.flavors": {"flavors": [{"name": "f"}]}},
            id="the flavors of a LocalQueue",
        ),
        pytest.param(
            old("AdmissionCheck", {"controllerName": "c", "retryDelayMinutes": 3}),
            {"spec": {"controllerName": "c"}},
            {"spec.retryDelayMinutes": {"retryDelayMinutes": 3}},
            id="the delay of a check",
        ),
        pytest.param(
            old("Workload", {"priorityClassName": "high"}),
            {"spec": {}},
            {"spec.priorityClassRef": {"priorityClassName": "high"}},
            id="a class without source",
        ),
    ],
)
def test_v1beta1_only_fields_are_restored_from_annotation(before: Obj, after: Obj, original: Obj) -> None:
    stored = to_storage(before)
    assert {part: stored[part] for part in after} == after
    assert annotation_value(stored, OLD_ONLY_ANNOTATION) == original
    assert from_storage(stored, OLD_API_VERSION) == before


def new(kind: str, spec: Obj | None = None, status: Obj | None = None) -> Obj:
    """An object of the storage version."""
    return {**old(kind, spec, status), "apiVersion": STORAGE_API_VERSION}


LAYERS = {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 2}]}


@pytest.mark.parametrize(
    ("stored", "part"),
    [
        pytest.param(
            new("ClusterQueue", {"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}),
            "spec.concurrentAdmissionPolicy",
            id="concurrent admission",
        ),
        pytest.param(
            new("Workload", {"preemptionGates": [{"name": "g"}]}), "spec.preemptionGates", id="gates of preemption"
        ),
        pytest.param(
            new("Workload", {}, {"preemptionGates": [{"name": "g", "position": "Open"}]}),
            "status.preemptionGates",
            id="positions of gates",
        ),
        pytest.param(
            new("Workload", {"podSets": [{**make.pod_set("a"), "topologyRequest": LAYERS}, make.pod_set("b")]}),
            "spec.podSets.topologyRequest.podsetSliceRequiredTopologyConstraints",
            id="layers of slices",
        ),
        pytest.param(
            new("Workload", {}, status_with_assignment({"levels": ["block", "host"], "slices": SLICES * 2})),
            "status.admission.podSetAssignments.topologyAssignment",
            id="slices cut in another way",
        ),
        pytest.param(
            new("MultiKueueConfig", {"clusters": ["a"], "quotaManagement": "Manual"}),
            "spec.quotaManagement",
            id="quotas",
        ),
    ],
)
def test_storage_only_fields_are_restored_from_annotation(stored: Obj, part: str) -> None:
    before = from_storage(stored, OLD_API_VERSION)
    assert list(annotation_value(before, NEW_ONLY_ANNOTATION)) == [part]
    assert to_storage(before) == stored


def test_changed_field_overrides_annotation() -> None:
    stored = to_storage(
        old("ClusterQueue", {"admissionChecks": ["a"], "flavorFungibility": {"whenCanBorrow": "Borrow"}})
    )
    strategy = {"admissionChecks": [{"name": "b"}]}
    changed = from_storage(with_edits(stored, {"spec.admissionChecksStrategy": strategy}), OLD_API_VERSION)
    assert changed["spec"] == {"admissionChecksStrategy": strategy, "flavorFungibility": {"whenCanBorrow": "Borrow"}}


def test_annotation_of_removed_field_is_ignored() -> None:
    stored = new("Workload", {"podSets": [{**make.pod_set("a"), "topologyRequest": LAYERS}]}, {"preemptionGates": []})
    before = from_storage(stored, OLD_API_VERSION)
    after = to_storage(with_edits(before, {"spec.podSets[0].topologyRequest": GONE, "status": GONE}))
    assert after == new("Workload", {"podSets": [make.pod_set("a")]})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("[]", id="no mapping"),
        pytest.param('{"spec.clusterSource": 5}', id="no part"),
        pytest.param('{"spec.clusterSource": {"clusterSource": 5}}', id="no source"),
        pytest.param('{"spec.clusterSource": {"clusterSource": {"kubeConfig": "x"}}}', id="another source"),
    ],
)
def test_invalid_annotation_is_dropped(text: str) -> None:
    before = old("MultiKueueCluster", {"kubeConfig": {"location": "s"}}, None, **{NEW_ONLY_ANNOTATION: text, "a": "b"})
    after = to_storage(before)
    assert after["spec"] == {"clusterSource": {"kubeConfig": {"location": "s"}}}
    assert after["metadata"]["annotations"] == {"a": "b"}


def test_domains_that_mismatch_levels_are_left_unconverted() -> None:
    status = status_with_assignment({"levels": ["block"], "domains": DOMAINS})
    assert to_storage(old("Workload", {}, status))["status"] == status


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"priorityClassSource": ""}, id="empty source without class"),
        pytest.param({"priorityClassName": "", "priorityClassSource": ""}, id="no class at all"),
    ],
)
def test_empty_priority_class_converts_to_no_reference(spec: Obj) -> None:
    assert to_storage(old("Workload", spec))["spec"] == {}


def test_default_retry_delay_is_not_kept_in_annotation() -> None:
    stored = to_storage(old("AdmissionCheck", {"controllerName": "c", "retryDelayMinutes": 15}))
    assert stored == new("AdmissionCheck", {"controllerName": "c"})


@pytest.mark.parametrize("obj", [make.workload(), make.job(), make.namespace()], ids=lambda obj: obj["kind"])
def test_object_in_target_version_is_returned_unchanged(obj: Obj) -> None:
    assert to_storage(obj) is obj
    assert from_storage(obj, obj["apiVersion"]) is obj


def test_conversion_to_unknown_version_raises_value_error() -> None:
    with pytest.raises(ValueError, match="batch/v1 Job has no version"):
        from_storage(make.job(), OLD_API_VERSION)
    with pytest.raises(ValueError, match="Workload has no version"):
        from_storage(make.workload(), "kueue.x-k8s.io/v1")


def test_conversion_does_not_modify_input() -> None:
    before = old("ClusterQueue", {"cohort": "all", "admissionChecks": ["a"]}, None, a="b")
    text = repr(before)
    from_storage(to_storage(before), OLD_API_VERSION)
    assert repr(before) == text


def test_conversion_of_identical_versions_changes_api_version_only() -> None:
    request = {"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "ProvisioningRequest", "spec": {"podSets": []}}
    stored = to_storage(request)
    assert stored == {**request, "apiVersion": "autoscaling.x-k8s.io/v1"}
    assert from_storage(stored, "autoscaling.x-k8s.io/v1beta1") == request
    assert to_storage(stored) is stored
    with pytest.raises(ValueError, match=r"ProvisioningRequest has no version autoscaling\.x-k8s\.io/v2"):
        from_storage(stored, "autoscaling.x-k8s.io/v2")


def test_equal_parts_of_decoded_objects_are_shared() -> None:
    parts = SharedParts()
    a, b = (json.loads(json.dumps(managed_workload(name))) for name in "ab")
    expected = json.dumps(b)
    parts.share(a)
    parts.share(b)
    assert json.dumps(b) == expected
    assert a["spec"] is b["spec"]
    assert a["status"]["conditions"][0] is b["status"]["conditions"][0]
    assert a["metadata"]["finalizers"] is b["metadata"]["finalizers"]
    (entry_a, own_a), (entry_b, own_b) = a["metadata"]["managedFields"], b["metadata"]["managedFields"]
    assert entry_a is entry_b
    assert own_a is not own_b
    assert own_a["fieldsV1"] is own_b["fieldsV1"]


def managed_workload(name: str) -> Obj:
    """Return a Workload with two managers; the times of the second one differ between Workloads."""
    fields = {"manager": "m", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}
    managers = [{**fields, "time": "T0"}, {**fields, "time": f"T-{name}"}]
    workload = make.workload(name, conditions=[make.condition("Admitted")])
    metadata = {**workload["metadata"], "managedFields": managers, "finalizers": ["example.com/f"]}
    return {**workload, "metadata": metadata}


@pytest.mark.parametrize(
    "obj", [{}, {"metadata": None}, {"metadata": {"managedFields": "x"}, "status": {"conditions": 3}}]
)
def test_parts_of_malformed_object_stay_unchanged(obj: Obj) -> None:
    text = json.dumps(obj)
    SharedParts().share(obj)
    assert json.dumps(obj) == text
