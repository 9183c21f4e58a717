"""Validation of the status of Workloads."""

from typing import Any

import pytest

import make
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
PLACES = "status.admission.podSetAssignments[0].topologyAssignment"
CHECKS = "status.admissionChecks"
RESERVED = make.workload(
    pod_sets=[make.pod_set("a", 3), make.pod_set("b", 2)],
    conditions=[make.condition("QuotaReserved")],
    status={"admission": make.admission(a=3, b=2)},
)
SLICE = {
    "domainCount": 2,
    "valuesPerLevel": [{"universal": "r1"}, {"individual": {"prefix": "h", "roots": ["1", "2"]}}],
    "podCounts": {"individual": [1, 2]},
}
PLACED = with_edits(RESERVED, {PLACES: {"levels": ["rack", "host"], "slices": [SLICE]}})
CHECK = {"name": "c", "state": "Ready", "podSetUpdates": [{"name": "a", "labels": {"x": "y"}}]}
CHECKED = with_edits(RESERVED, {CHECKS: [CHECK]})


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(RESERVED, id="reserved"),
        pytest.param(PLACED, id="placed"),
        pytest.param(CHECKED, id="checked"),
        pytest.param(
            with_edits(RESERVED, {"status.reclaimablePods": [{"name": "a", "count": 3}]}), id="reclaimable pods"
        ),
        pytest.param(with_edits(RESERVED, {"status.clusterName": "far"}), id="dispatched"),
        pytest.param(
            with_edits(RESERVED, {"status": {"admission": make.admission(x=7)}}), id="an admission that holds no quota"
        ),
    ],
)
def test_valid_workload_status_is_accepted(obj: dict[str, Any]) -> None:
    assert validate(obj) == []
    assert validate_update(obj, obj) == []


@pytest.mark.parametrize(
    ("edits", "starts"),
    [
        pytest.param(
            {"status.admission": GONE},
            ["status.admission: Required value: must be set while the QuotaReserved condition is true"],
            id="reservation without admission",
        ),
        pytest.param(
            {"status.admission": make.admission(a=3)},
            [': Invalid value: "object": podSetAssignments must have the same number of podSets as the spec'],
            id="a podSet without assignment",
        ),
        pytest.param(
            {"status.admission": make.admission(a=3, c=2)},
            ['status.admission.podSetAssignments[1].name: Not found: "c"'],
            id="an assignment of another podSet",
        ),
        pytest.param(
            {"status.admission.podSetAssignments[0].resourceUsage": {"cpu": "1", "memory": "9Gi"}},
            ['status.admission.podSetAssignments[0].resourceUsage[cpu]: Invalid value: "1": is not a multiple of 3'],
            id="usage not divisible by pods",
        ),
        pytest.param(
            {"status.conditions": [make.condition("QuotaReserved"), make.condition("QuotaReserved")]},
            ['status.conditions[1].type: Duplicate value: "QuotaReserved"'],
            id="a condition twice",
        ),
        pytest.param(
            {"status.conditions[0].type": "a b", "status.conditions[0].status": "Maybe"},
            ['status.conditions[0].type: Invalid value: "a b"', 'status.conditions[0].status: Unsupported value: "May'],
            id="no condition",
        ),
        pytest.param(
            {"status.reclaimablePods": [{"name": "a", "count": 4}]},
            ["status.reclaimablePods[a].count: Invalid value: 4: should be less or equal to 3"],
            id="more reclaimable pods than count",
        ),
        pytest.param(
            {"status.reclaimablePods": [{"name": "x", "count": 1}]},
            ['status.reclaimablePods[x].name: Unsupported value: "x": supported values: "a", "b"'],
            id="reclaimable pods of another podSet",
        ),
        pytest.param(
            {"status.clusterName": "far", "status.nominatedClusterNames": ["far"]},
            ['status: Invalid value: "object": clusterName and nominatedClusterNames are mutually exclusive'],
            id="dispatched and nominated",
        ),
    ],
)
def test_invalid_workload_status_is_rejected(edits: dict[str, Any], starts: list[str]) -> None:
    assert begins(validate(with_edits(RESERVED, edits)), *starts)


@pytest.mark.parametrize(
    ("update", "path"),
    [
        pytest.param({"name": "x"}, "name: Unsupported value", id="another podSet"),
        pytest.param({"name": "a", "labels": {"a b": ""}}, "labels: Invalid value", id="labels"),
        pytest.param({"name": "a", "annotations": {"a b": ""}}, "annotations: Invalid value", id="annotations"),
        pytest.param({"name": "a", "nodeSelector": {"a b": ""}}, "nodeSelector: Invalid value", id="node selector"),
        pytest.param(
            {"name": "a", "tolerations": [{"operator": "Equal"}]},
            "tolerations[0].operator: Invalid value",
            id="tolerations",
        ),
    ],
)
def test_invalid_pod_set_update_of_admission_check_is_rejected(update: dict[str, Any], path: str) -> None:
    obj = with_edits(CHECKED, {f"{CHECKS}[0].podSetUpdates": [update]})
    assert begins(validate(obj), f"{CHECKS}[0].podSetUpdates[0].{path}")


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({f"{PLACES}.slices": GONE}, f"{PLACES}.slices: Required value", id="no places"),
        pytest.param(
            {f"{PLACES}.levels": ["rack"]},
            f'{PLACES}: Invalid value: "object": valuesPerLevel must have the same length as the number of levels',
            id="a level too few",
        ),
        pytest.param(
            {f"{PLACES}.slices[0].podCounts": {}},
            f'{PLACES}.slices[0].podCounts: Invalid value: "object": exactly one of the fields in [universal',
            id="no counts",
        ),
        pytest.param(
            {f"{PLACES}.slices[0].podCounts": {"individual": [3]}},
            f'{PLACES}.slices[0]: Invalid value: "object": podCounts.individual must have length equal to domainCount',
            id="a count too few",
        ),
        pytest.param(
            {f"{PLACES}.slices[0].valuesPerLevel[0].individual": {"roots": ["a", "b"]}},
            f'{PLACES}.slices[0].valuesPerLevel[0]: Invalid value: "object": exactly one of the fields in [universal',
            id="two forms of a value",
        ),
        pytest.param(
            {f"{PLACES}.slices[0].valuesPerLevel[1].individual.roots": ["1"]},
            f'{PLACES}.slices[0]: Invalid value: "object": valuesPerLevel.individual, if set, must have roots',
            id="a value too few",
        ),
    ],
)
def test_incomplete_topology_assignment_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(PLACED, edits)), start)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"status.admission": GONE, "status.conditions": []}, id="the admission is removed"),
        pytest.param({f"{PLACES}.slices[0].podCounts": {"individual": [2, 1]}}, id="pods move"),
        pytest.param({"status.admission.podSetAssignments[1].delayedTopologyRequest": "Ready"}, id="places are found"),
        pytest.param({"status.reclaimablePods": [{"name": "a", "count": 1}]}, id="pods become reclaimable"),
    ],
)
def test_mutable_admission_fields_are_accepted_in_update(edits: dict[str, Any]) -> None:
    assert validate_update(with_edits(PLACED, edits), PLACED) == []


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"status.admission.clusterQueue": "other"}, id="the ClusterQueue"),
        pytest.param({"status.admission.podSetAssignments[0].flavors.cpu": "other"}, id="a flavor"),
        pytest.param({"status.admission.podSetAssignments[0].count": 1}, id="a count"),
    ],
)
def test_immutable_admission_fields_are_rejected_in_update(edits: dict[str, Any]) -> None:
    assert begins(validate_update(with_edits(RESERVED, edits), RESERVED), "status.admission: Invalid value: {")


def test_pod_set_updates_of_ready_check_are_immutable() -> None:
    path = f"{CHECKS}[0].podSetUpdates"
    assert begins(validate_update(with_edits(CHECKED, {path: []}), CHECKED), f"{path}: Invalid value: []: field is imm")
    assert validate_update(with_edits(CHECKED, {path: [], f"{CHECKS}[0].state": "Retry"}), CHECKED) == []


def with_reclaimable_pods(*counts: int, count: int = 3, elastic: bool = False) -> dict[str, Any]:
    """Return the Workload with these counts of reclaimable Pods for podSets a and b."""
    annotations = ELASTIC if elastic else {}
    pods = [{"name": name, "count": n} for name, n in zip("ab", counts, strict=False)]
    edits = {"status.reclaimablePods": pods, "spec.podSets[0].count": count, "metadata.annotations": annotations}
    return with_edits(RESERVED, edits)


def test_reclaimable_pods_count_must_not_decrease() -> None:
    start = "status.reclaimablePods[a].count: Invalid value: 1: cannot be less than 2"
    assert validate_update(with_reclaimable_pods(3, 1), with_reclaimable_pods(2)) == []
    assert begins(validate_update(with_reclaimable_pods(1), with_reclaimable_pods(2)), start)
    assert begins(
        validate_update(with_reclaimable_pods(2), with_reclaimable_pods(2, 1)),
        "status.reclaimablePods[b]: Required value: cannot be",
    )


def test_reclaimable_pods_of_scaled_down_elastic_workload_may_decrease() -> None:
    old = with_reclaimable_pods(2, elastic=True)
    assert validate_update(with_reclaimable_pods(2, count=1, elastic=True), old) == []
    assert validate_update(with_reclaimable_pods(1, count=1, elastic=True), old) == []
    assert begins(
        validate_update(with_reclaimable_pods(3, count=1, elastic=True), old),
        "status.reclaimablePods[a].count: Invalid",
    )


def test_existing_reservation_without_admission_is_accepted_in_update() -> None:
    old = with_edits(RESERVED, {"status.admission": GONE})
    assert validate_update(with_edits(old, {"metadata.labels": {"a": "b"}}), old) == []
    assert begins(validate_update(old, RESERVED), "status.admission: Required value")


NOMINATED = make.workload(status={"nominatedClusterNames": ["far", "near"]})


@pytest.mark.parametrize(
    ("old", "cluster", "annotations", "start"),
    [
        pytest.param(NOMINATED, "far", {}, None, id="a nominated cluster"),
        pytest.param(
            NOMINATED,
            "other",
            {},
            'status.clusterName: Invalid value: "other": when setting clusterName',
            id="another cluster",
        ),
        pytest.param(
            NOMINATED,
            "other",
            {"kueue.x-k8s.io/workload-slice-replacement-for": "a/b"},
            None,
            id="the cluster of the replaced slice",
        ),
        pytest.param(
            make.workload(status={"clusterName": "far"}),
            "near",
            {},
            'status: Invalid value: "object": clusterName is immutable once set',
            id="a cluster after dispatch",
        ),
    ],
)
def test_cluster_name_must_be_nominated_and_is_immutable(
    old: dict[str, Any], cluster: str, annotations: dict[str, str], start: str | None
) -> None:
    new = with_edits(old, {"status": {"clusterName": cluster}, "metadata.annotations": annotations})
    assert begins(validate_update(new, old), *([start] if start else []))
