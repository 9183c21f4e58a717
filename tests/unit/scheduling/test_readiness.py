"""The Active condition of a ClusterQueue and its reasons."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

import make
from batchyard.api.views.workload import cluster_queue_view
from batchyard.scheduling.cluster_queue import (
    MULTIKUEUE_CONTROLLER_NAME,
    PROVISIONING_CONTROLLER_NAME,
    AdmissionCheckInfo,
    compute_active_status,
)
from yard import group, queue

CHECKS = {"admissionChecks": [{"name": "b"}, {"name": "a"}]}


def readiness(
    flavors: Collection[str] = ("one", "two"), checks: Mapping[str, bool] | None = None, **spec: Any
) -> tuple[bool, str, str]:
    terminating = spec.pop("terminating", False)
    view = cluster_queue_view(queue("cq", groups=[group(one={"cpu": 1}, two={"cpu": 1})], **spec))
    known = {name: AdmissionCheckInfo(active) for name, active in (checks or {}).items()}
    return compute_active_status(view, terminating=terminating, flavors=flavors, checks=known)


def inactive_message(*faults: str) -> str:
    return f"Can't admit new workloads: {', '.join(faults)}."


def test_queue_with_existing_references_is_ready() -> None:
    assert readiness() == (True, "Ready", "Can admit new workloads")
    assert readiness(checks={"a": True, "b": True}, admissionChecksStrategy=CHECKS)[:2] == (True, "Ready")


def test_queue_without_resource_groups_is_ready() -> None:
    bare = cluster_queue_view(make.cluster_queue())
    assert compute_active_status(bare, terminating=False, flavors=(), checks={}).active


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_stopped_queue_is_not_ready(policy: str) -> None:
    assert readiness(stopPolicy=policy) == (False, "Stopped", inactive_message("is stopped"))


@pytest.mark.parametrize(
    ("flavors", "missing"), [(("two",), "one"), ((), "one,two"), (("one", "other"), "two")], ids=str
)
def test_missing_flavors_are_listed(flavors: Collection[str], missing: str) -> None:
    expected = (False, "FlavorNotFound", inactive_message(f"references missing ResourceFlavor(s): {missing}"))
    assert readiness(flavors) == expected


@pytest.mark.parametrize(
    ("checks", "reason", "faults"),
    [
        ({}, "AdmissionCheckNotFound", ["references missing AdmissionCheck(s): a,b"]),
        ({"a": True, "b": False}, "AdmissionCheckInactive", ["references inactive AdmissionCheck(s): b"]),
        (
            {"a": False},
            "AdmissionCheckNotFound",
            ["references missing AdmissionCheck(s): b", "references inactive AdmissionCheck(s): a"],
        ),
    ],
)
def test_missing_and_inactive_admission_checks_are_listed(
    checks: dict[str, bool], reason: str, faults: list[str]
) -> None:
    assert readiness(checks=checks, admissionChecksStrategy=CHECKS) == (False, reason, inactive_message(*faults))


def test_invalid_combinations_of_multikueue_checks_are_reported() -> None:
    rules = [{"name": "b"}, {"name": "a"}, {"name": "p", "onFlavors": ["one"]}, {"name": "c", "onFlavors": ["two"]}]
    groups = [group(one={"cpu": 1}, two={"cpu": 1})]
    view = cluster_queue_view(queue("cq", groups=groups, admissionChecksStrategy={"admissionChecks": rules}))
    known = {
        name: AdmissionCheckInfo(True, PROVISIONING_CONTROLLER_NAME if name == "p" else MULTIKUEUE_CONTROLLER_NAME)
        for name in "abcp"
    }
    result = compute_active_status(view, terminating=False, flavors=("one", "two"), checks=known)
    assert result == (
        False,
        "MultipleMultiKueueAdmissionChecks",
        inactive_message(
            "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: a,b,c",
            "Cannot specify MultiKueue AdmissionCheck per flavor, found: c",
            "Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, found: a,b,c, p",
        ),
    )


def test_all_faults_are_reported_with_first_as_reason() -> None:
    assert readiness(("one",), {"a": True}, stopPolicy="Hold", admissionChecksStrategy=CHECKS) == (
        False,
        "Stopped",
        inactive_message(
            "is stopped", "references missing ResourceFlavor(s): two", "references missing AdmissionCheck(s): b"
        ),
    )


def test_terminating_queue_reports_only_termination() -> None:
    message = "Can't admit new workloads; clusterQueue is terminating"
    assert readiness((), stopPolicy="Hold", terminating=True) == (False, "Terminating", message)
