"""Validation of ClusterQueues and Cohorts."""

from typing import Any

import pytest

import make
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

GROUP: dict[str, Any] = {
    "coveredResources": ["cpu", "memory"],
    "flavors": [
        {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "9"}, {"name": "memory", "nominalQuota": "9Gi"}]}
    ],
}
QUEUE = make.cluster_queue(active=None, cohortName="all", resourceGroups=[GROUP])
COHORT = {**QUEUE, "kind": "Cohort", "spec": {"parentName": "root", "resourceGroups": [GROUP]}}
ALONE = with_edits(QUEUE, {"spec.cohortName": GONE})
CPU = "spec.resourceGroups[0].flavors[0].resources[0]"
POLICY = {"migration": {"mode": "TryPreferredFlavors"}}


def flavors(count: int, *resources: str) -> list[dict[str, Any]]:
    """Return flavors with zero quota."""
    return [{"name": f"f{i}", "resources": [{"name": r, "nominalQuota": 0} for r in resources]} for i in range(count)]


def group(flavor_count: int, resource_count: int = 1, prefix: str = "r") -> dict[str, Any]:
    """Return a resource group with many flavors and resources."""
    resources = [f"example.com/{prefix}{i}" for i in range(resource_count)]
    return {"coveredResources": resources, "flavors": flavors(flavor_count, *resources)}


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"spec.resourceGroups": GONE}, id="no groups"),
        pytest.param({f"{CPU}.borrowingLimit": "0", f"{CPU}.lendingLimit": 9}, id="limits within a cohort"),
        pytest.param({"spec.fairSharing": {"weight": "0"}}, id="no weight"),
        pytest.param({"spec.fairSharing": {"weight": "2n"}}, id="a small weight"),
        pytest.param({"spec.namespaceSelector": {"matchLabels": {"team": "a"}}}, id="a selector"),
        pytest.param(
            {"spec.preemption": {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}},
            id="preemption while borrowing",
        ),
        pytest.param(
            {
                "spec.flavorFungibility": {
                    "whenCanBorrow": "TryNextFlavor",
                    "whenCanPreempt": "TryNextFlavor",
                    "preference": "BorrowingOverPreemption",
                }
            },
            id="a preference",
        ),
        pytest.param(
            {
                "spec.admissionChecksStrategy": {
                    "admissionChecks": [{"name": "c", "onFlavors": ["spot"]}, {"name": "d"}]
                }
            },
            id="checks for flavors it has",
        ),
        pytest.param({"spec.concurrentAdmissionPolicy": POLICY}, id="concurrent admission"),
        pytest.param(
            {"spec.concurrentAdmissionPolicy": POLICY, "spec.queueingStrategy": "StrictFIFO"},
            id="concurrent admission in strict order, which upstream rejects only with a feature gate",
        ),
        pytest.param({"spec.resourceGroups": [group(64, 4)]}, id="as many flavors as a group may have"),
    ],
)
def test_valid_cluster_queue_is_accepted(edits: dict[str, Any]) -> None:
    assert validate(with_edits(QUEUE, edits)) == []


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {f"{CPU}.name": "memory"},
            f'{CPU}.name: Invalid value: "memory": must match the name in coveredResources',
            id="another resource than covered",
        ),
        pytest.param(
            {"spec.resourceGroups[0].coveredResources": ["cpu"]},
            'spec.resourceGroups[0]: Invalid value: "object": '
            "flavors must have the same number of resources as the coveredResources",
            id="a resource that is not covered",
        ),
        pytest.param(
            {"spec.resourceGroups[0].coveredResources": ["cpu", "a b"], f"{CPU[:-2]}1].name": "a b"},
            'spec.resourceGroups[0].coveredResources[1]: Invalid value: "a b": name part must consist',
            id="no name of a resource",
        ),
        pytest.param(
            {"spec.resourceGroups": [GROUP, {"coveredResources": ["cpu"], "flavors": flavors(1, "cpu")}]},
            'spec.resourceGroups[1].coveredResources[0]: Duplicate value: "cpu"',
            id="a resource in two groups",
        ),
        pytest.param(
            {"spec.resourceGroups[0].flavors": [GROUP["flavors"][0], GROUP["flavors"][0]]},
            'spec.resourceGroups[0].flavors[1].name: Duplicate value: "spot"',
            id="a flavor twice",
        ),
        pytest.param(
            {f"{CPU}.nominalQuota": "-1"},
            f'{CPU}.nominalQuota: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative quota",
        ),
        pytest.param(
            {f"{CPU}.nominalQuota": "1e1.5"},
            f'{CPU}.nominalQuota: Invalid value: "1e1.5": must be a quantity',
            id="no quantity",
        ),
        pytest.param(
            {f"{CPU}.borrowingLimit": "-500m"},
            f'{CPU}.borrowingLimit: Invalid value: "-500m": must be greater than or equal to 0',
            id="a negative limit",
        ),
        pytest.param(
            {f"{CPU}.lendingLimit": "10"},
            f'{CPU}.lendingLimit: Invalid value: "10": must be less than or equal to the nominalQuota',
            id="lending more than nominal quota",
        ),
        pytest.param(
            {"spec.preemption": {"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "LowerPriority"}}},
            'spec.preemption: Invalid value: "object": reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never',
            id="preemption while borrowing without reclaiming",
        ),
        pytest.param(
            {
                "spec.flavorFungibility": {
                    "whenCanBorrow": "TryNextFlavor",
                    "whenCanPreempt": "MayStopSearch",
                    "preference": "PreemptionOverBorrowing",
                }
            },
            'spec.flavorFungibility: Invalid value: "object": preference can only be set when both',
            id="a preference where the search stops",
        ),
        pytest.param(
            {"spec.fairSharing": {"weight": -1}},
            'spec.fairSharing: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative weight",
        ),
        pytest.param(
            {"spec.fairSharing": {"weight": "1n"}},
            'spec.fairSharing: Invalid value: "1n": When not 0, weight must be > 10e-9',
            id="a weight below the minimum",
        ),
        pytest.param(
            {"spec.namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "spec.namespaceSelector.matchExpressions[0].values: Required value: must be specified",
            id="a bad selector",
        ),
        pytest.param(
            {"spec.admissionChecksStrategy": {"admissionChecks": [{"name": "c", "onFlavors": ["spot", "x"]}]}},
            "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[1]: "
            'Unsupported value: "x": supported values: "spot"',
            id="a check for a missing flavor",
        ),
        pytest.param(
            {"spec.resourceGroups": [group(64, 9)]},
            "spec.resourceGroups[0]: Invalid value: 576: number of flavor-resource combinations in a resourceGroup",
            id="too many pairs of flavor and resource",
        ),
    ],
)
def test_invalid_cluster_queue_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(QUEUE, edits)), start)


@pytest.mark.parametrize(
    ("groups", "start"),
    [
        pytest.param(
            [
                {
                    **group(65, 1, f"g{i}-"),
                    "flavors": [{**f, "name": f"{i}-{f['name']}"} for f in group(65, 1, f"g{i}-")["flavors"]],
                }
                for i in range(4)
            ],
            "spec.resourceGroups: Invalid value: 260: total number of flavors across all resourceGroups must be ≤ 256",
            id="flavors",
        ),
        pytest.param(
            [{**group(0, 65, f"g{i}-")} for i in range(4)],
            "spec.resourceGroups: Invalid value: 260: total number of covered resources across all resourceGroups",
            id="resources",
        ),
    ],
)
def test_cluster_queue_over_256_flavors_or_resources_is_rejected(groups: list[Any], start: str) -> None:
    assert begins(validate(with_edits(QUEUE, {"spec.resourceGroups": groups})), start)


@pytest.mark.parametrize("limit", ["borrowingLimit", "lendingLimit"])
@pytest.mark.parametrize(
    ("obj", "absent"),
    [
        pytest.param(ALONE, "cohort", id="ClusterQueue"),
        pytest.param(with_edits(COHORT, {"spec.parentName": GONE}), "parent", id="Cohort"),
    ],
)
def test_limits_without_cohort_or_parent_are_rejected(obj: dict[str, Any], absent: str, limit: str) -> None:
    faults = validate(with_edits(obj, {f"{CPU}.{limit}": "1"}))
    assert begins(faults, f'{CPU}.{limit}: Invalid value: "1": must be nil when {absent} is empty')


def test_cohort_limits_may_exceed_nominal_quota() -> None:
    assert validate(with_edits(COHORT, {f"{CPU}.lendingLimit": "99", f"{CPU}.borrowingLimit": "99"})) == []


def test_cohort_with_invalid_quota_or_weight_is_rejected() -> None:
    edits = {"spec.fairSharing": {"weight": "-1"}, f"{CPU}.name": "memory"}
    assert begins(validate(with_edits(COHORT, edits)), "spec.fairSharing: Invalid value", f"{CPU}.name: Invalid value")


def test_concurrent_admission_policy_is_immutable() -> None:
    obj = with_edits(QUEUE, {"spec.concurrentAdmissionPolicy": POLICY})
    faults = validate_update(obj, QUEUE)
    assert validate_update(obj, obj) == []
    assert begins(faults, "spec.concurrentAdmissionPolicy: Invalid value: {")


def test_check_for_missing_flavor_is_rejected_only_on_change() -> None:
    checks = {"admissionChecks": [{"name": "c", "onFlavors": ["gone"]}]}
    old = with_edits(QUEUE, {"spec.admissionChecksStrategy": checks})
    start = "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[0]: Unsupported value"
    assert validate_update(with_edits(old, {"spec.cohortName": "other"}), old) == []
    assert begins(validate_update(with_edits(old, {"spec.resourceGroups[0].flavors[0].name": "new"}), old), start)
    assert begins(validate_update(old, QUEUE), start)


def test_all_faults_are_reported_together() -> None:
    edits = {"metadata.name": "A", f"{CPU}.borrowingLimit": "1", "spec.fairSharing": {"weight": "-1"}}
    paths = [fault.path for fault in validate(with_edits(ALONE, edits))]
    assert paths == ["metadata.name", f"{CPU}.borrowingLimit", "spec.fairSharing"]
