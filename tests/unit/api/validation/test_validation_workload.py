"""Validation of Workloads."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
TEMPLATE = "spec.podSets[0].template"
RESOURCES = f"{TEMPLATE}.spec.containers[0].resources"
REQUEST = "spec.podSets[0].topologyRequest"
WORKLOAD = make.workload(pod_sets=[make.pod_set("a", 3), make.pod_set("b", 2)])
RESERVED = with_edits(
    WORKLOAD,
    {
        "status.conditions": [make.condition("QuotaReserved")],
        "status.admission": make.admission(a=3, b=2),
        "spec.priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"},
        "spec.priority": 10,
        "spec.maximumExecutionTimeSeconds": 60,
    },
)
ADMITTED = with_edits(RESERVED, {"status.conditions": [make.condition("QuotaReserved"), make.condition("Admitted")]})


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"spec.podSets[0].minCount": 3}, id="partial admission"),
        pytest.param({f"{RESOURCES}.limits": {"cpu": "0.5"}}, id="a limit below the request"),
        pytest.param({f"{TEMPLATE}.spec.resources": {"requests": {"cpu": 0}}}, id="requests of the pod"),
        pytest.param({f"{TEMPLATE}.metadata": {"labels": {"a": "b"}, "annotations": {"c": "d e"}}}, id="labels"),
        pytest.param({REQUEST: {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2}}, id="slices"),
        pytest.param(
            {
                "spec.priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"},
                "spec.priority": 0,
            },
            id="a class of pods",
        ),
        pytest.param({"metadata.annotations": ELASTIC}, id="elastic"),
        pytest.param(
            {"metadata.annotations": {"kueue.x-k8s.io/admission-gated-by": "a.io/b, c.io/d"}}, id="admission gates"
        ),
    ],
)
def test_valid_workload_is_accepted(edits: dict[str, Any]) -> None:
    assert validate(with_edits(WORKLOAD, edits)) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {"spec.podSets[0].minCount": 4},
            'spec.podSets[0]: Invalid value: "object": minCount should be positive and less or equal to count',
            id="minCount above count",
        ),
        pytest.param(
            {"spec.podSets[0].minCount": 1, "spec.podSets[1].minCount": 1},
            "spec.podSets: Invalid value: 2: at most one podSet can use minCount",
            id="two variable podSets",
        ),
        pytest.param(
            {"spec.podSets[0].minCount": 1, "metadata.annotations": ELASTIC},
            "spec.podSets: Invalid value: 1: partial admission and elastic job cannot be used together",
            id="variable and elastic",
        ),
        pytest.param({"spec.podSets[1].name": "a"}, 'spec.podSets[1].name: Duplicate value: "a"', id="a name twice"),
        pytest.param(
            {f"{RESOURCES}.requests": {"pods": 1}},
            f'{RESOURCES}.requests[pods]: Invalid value: "pods": the key is reserved for internal kueue use',
            id="a request of pods",
        ),
        pytest.param(
            {f"{RESOURCES}.limits": {"cpu": "-1"}},
            f'{RESOURCES}.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative limit",
        ),
        pytest.param(
            {f"{TEMPLATE}.spec.initContainers": [{"name": "i", "resources": {"requests": {"cpu": "-1"}}}]},
            f'{TEMPLATE}.spec.initContainers[0].resources.requests[cpu]: Invalid value: "-1": must be greater',
            id="a negative request at the start",
        ),
        pytest.param(
            {f"{TEMPLATE}.spec.resources": {"requests": {"cpu": "x"}}},
            f'{TEMPLATE}.spec.resources.requests[cpu]: Invalid value: "x": must be a quantity',
            id="no quantity",
        ),
        pytest.param(
            {f"{TEMPLATE}.metadata": {"labels": {"a b": ""}}},
            f'{TEMPLATE}.metadata.labels: Invalid value: "a b"',
            id="no label",
        ),
        pytest.param(
            {f"{TEMPLATE}.metadata": {"annotations": {"a b": ""}}},
            f'{TEMPLATE}.metadata.annotations: Invalid value: "a b"',
            id="no annotation",
        ),
        pytest.param(
            {REQUEST: {"podSetSliceRequiredTopology": "rack"}},
            f"{REQUEST}.podSetSliceSize: Required value: must be set when podSetSliceRequiredTopology is specified",
            id="slices of no size",
        ),
        pytest.param(
            {REQUEST: {"podSetSliceSize": 2}},
            f"{REQUEST}.podSetSliceSize: Forbidden: may not be set when podSetSliceRequiredTopology is not specified",
            id="slices of no topology",
        ),
        pytest.param(
            {REQUEST: {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 0}},
            f"{REQUEST}.podSetSliceSize: Invalid value: 0: must be greater than 0",
            id="empty slices",
        ),
        pytest.param(
            {REQUEST: {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 0}]}},
            f"{REQUEST}.podsetSliceRequiredTopologyConstraints[0].size: Invalid value: 0: must be greater than 0",
            id="empty layers",
        ),
        pytest.param(
            {"spec.priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}},
            'spec: Invalid value: "object": priority should not be nil when priorityClassRef is set',
            id="a class without its value",
        ),
        pytest.param(
            {"metadata.annotations": {"kueue.x-k8s.io/admission-gated-by": "gate"}},
            'metadata.annotations[kueue.x-k8s.io/admission-gated-by]: Invalid value: "gate": must be a domain-prefixed',
            id="a gate without domain",
        ),
    ],
)
def test_invalid_workload_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(WORKLOAD, edits)), start)


@pytest.mark.parametrize(
    ("group", "kind", "right"),
    [
        pytest.param("scheduling.k8s.io", "WorkloadPriorityClass", "PriorityClass", id="a class of pods"),
        pytest.param("kueue.x-k8s.io", "PriorityClass", "WorkloadPriorityClass", id="a class of Workloads"),
    ],
)
def test_priority_class_kind_must_match_group(group: str, kind: str, right: str) -> None:
    reference = {"group": group, "kind": kind, "name": "high"}
    faults = validate(with_edits(WORKLOAD, {"spec.priorityClassRef": reference, "spec.priority": 1}))
    start = f'spec.priorityClassRef: Invalid value: "object": only the {right} kind is allowed for the {group} group'
    assert begins(faults, start)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"spec.podSets[0].count": 2}, id="a podSet shrinks"),
        pytest.param({"spec.priorityClassRef.name": "low"}, id="another class of Workloads"),
        pytest.param({"spec.priority": 5}, id="the priority"),
        pytest.param({"spec.active": False}, id="deactivation"),
        pytest.param({"spec.maximumExecutionTimeSeconds": 90}, id="the time limit before admission"),
        pytest.param({"status": {}}, id="the end of the reservation"),
        pytest.param({"status": {}, "spec.queueName": "other"}, id="the queue at the end of the reservation"),
    ],
)
def test_mutable_fields_with_quota_reservation_are_accepted_in_update(edits: dict[str, Any]) -> None:
    assert validate_update(with_edits(RESERVED, edits), RESERVED) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({"spec.podSets[0].count": 4}, 'spec.podSets.0: Invalid value: {"name":"a"', id="a podSet grows"),
        pytest.param(
            {"spec.podSets[0].count": 2, f"{RESOURCES}.requests.cpu": "2"},
            "spec.podSets.0: Invalid value: {",
            id="requests",
        ),
        pytest.param(
            {"spec.podSets": [make.pod_set("a", 3)], "status.admission": make.admission(a=3)},
            'spec.podSets: Invalid value: "1 podSets": field is immutable',
            id="the number of podSets",
        ),
        pytest.param(
            {"spec.priorityClassRef": GONE},
            ': Invalid value: "object": priorityClassRef is immutable while workload quota reserved',
            id="the class is removed",
        ),
        pytest.param(
            {"spec.queueName": "other"},
            ': Invalid value: "object": queueName is immutable while workload quota reserved',
            id="the queue",
        ),
    ],
)
def test_immutable_fields_with_quota_reservation_are_rejected_in_update(edits: dict[str, Any], start: str) -> None:
    faults = [fault for fault in validate_update(with_edits(RESERVED, edits), RESERVED) if "status" not in fault.path]
    assert begins(faults, start)


def test_priority_class_kind_is_immutable_with_quota_reservation() -> None:
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "other"}
    faults = validate_update(with_edits(RESERVED, {"spec.priorityClassRef": reference}), RESERVED)
    starts = [f': Invalid value: "object": priorityClassRef.{field}' for field in ("group", "kind", "name")]
    assert begins(faults, *starts)


def test_maximum_execution_time_is_immutable_after_admission() -> None:
    faults = validate_update(with_edits(ADMITTED, {"spec.maximumExecutionTimeSeconds": GONE}), ADMITTED)
    start = ': Invalid value: "object": maximumExecutionTimeSeconds is immutable while workload quota reserved'
    assert begins(faults, start)


def test_all_fields_are_mutable_without_quota_reservation() -> None:
    edits = {"spec.podSets": [make.pod_set("c", 9)], "spec.queueName": "other"}
    assert validate_update(with_edits(WORKLOAD, edits), WORKLOAD) == []


def gated_workload(gates: str | None) -> dict[str, Any]:
    """Return the Workload with admission gates."""
    annotations: Mapping[str, str] = {} if gates is None else {"kueue.x-k8s.io/admission-gated-by": gates}
    return with_edits(WORKLOAD, {"metadata.annotations": dict(annotations)})


@pytest.mark.parametrize(
    ("gates", "problem"),
    [
        pytest.param("a.io/b,,c.io/d", "cannot contain empty gate names", id="an empty gate"),
        pytest.param("a.io/b,a.io/b", "duplicate gate name: a.io/b", id="a gate twice"),
        pytest.param(f"a.io/{'b' * 60}", "Too long: may not be more than 63 bytes", id="a long gate"),
    ],
)
def test_invalid_admission_gates_are_rejected(gates: str, problem: str) -> None:
    (fault,) = validate(gated_workload(gates))
    assert problem in fault.problem


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        pytest.param("a.io/b,c.io/d", "a.io/b", None, id="a gate opens"),
        pytest.param("a.io/b", None, None, id="all gates open"),
        pytest.param(None, "a.io/b", "Forbidden: cannot add admission gate after creation", id="a gate is set up"),
        pytest.param("a.io/b", "c.io/d", "Forbidden: can only remove gates, not add new ones", id="another gate"),
    ],
)
def test_admission_gates_may_only_be_removed(before: str | None, after: str | None, problem: str | None) -> None:
    faults = validate_update(gated_workload(after), gated_workload(before))
    assert [fault.problem for fault in faults] == ([problem] if problem else [])
