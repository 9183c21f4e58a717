"""The Active condition of a ClusterQueue and its reasons."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest

import make
from batchyard.api.views.node import FlavorView, flavor_view
from batchyard.api.views.workload import cluster_queue_view
from batchyard.scheduling.active_status import (
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
    """The Active condition of a queue with the flavors `one` and `two`; existing ones by name, or NAME@TOPOLOGY."""
    terminating = spec.pop("terminating", False)
    view = cluster_queue_view(queue("cq", groups=[group(one={"cpu": 1}, two={"cpu": 1})], **spec))
    known = {name: AdmissionCheckInfo(active) for name, active in (checks or {}).items()}
    return compute_active_status(
        view, terminating=terminating, flavors=flavor_views(flavors), topologies=["racks"], checks=known
    )


def flavor_views(names: Collection[str]) -> dict[str, FlavorView]:
    """The flavors by name; NAME@TOPOLOGY has a Topology."""
    parts = [name.partition("@") for name in names]
    return {name: flavor_view(make.flavor(name, topologyName=topology)) for name, _, topology in parts}


def inactive_message(*faults: str) -> str:
    return f"Can't admit new workloads: {', '.join(faults)}."


def test_queue_with_existing_references_is_ready() -> None:
    assert readiness() == (True, "Ready", "Can admit new workloads")
    assert readiness(checks={"a": True, "b": True}, admissionChecksStrategy=CHECKS)[:2] == (True, "Ready")


def test_queue_without_resource_groups_is_ready() -> None:
    bare = cluster_queue_view(make.cluster_queue())
    assert compute_active_status(bare, terminating=False, flavors={}, topologies=(), checks={}).active


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


NO_RACK = 'there is no Topology "rack" for TAS flavor "one"'
NO_HALL = 'there is no Topology "hall" for TAS flavor "two"'


@pytest.mark.parametrize(
    ("flavors", "faults"),
    [
        (("one@rack", "two@racks"), [NO_RACK]),
        (("two@hall", "one@rack"), [NO_RACK, NO_HALL]),
        (("one", "two", "other@rack"), []),
    ],
    ids=str,
)
def test_missing_topologies_of_flavors_are_listed(flavors: Collection[str], faults: list[str]) -> None:
    inactive = (False, "TopologyNotFound", inactive_message(*faults))
    assert readiness(flavors) == (inactive if faults else (True, "Ready", "Can admit new workloads"))


def test_missing_topology_is_reported_after_other_faults() -> None:
    faults = "references missing ResourceFlavor(s): two", NO_RACK
    assert readiness(("one@rack",)) == (False, "FlavorNotFound", inactive_message(*faults))


def test_topology_on_other_clusters_may_be_missing() -> None:
    checks, groups = {"admissionChecks": [{"name": "elsewhere"}]}, [group(one={"cpu": 1})]
    view = cluster_queue_view(queue("cq", groups=groups, admissionChecksStrategy=checks))
    for is_active in (True, False):
        known = {"elsewhere": AdmissionCheckInfo(is_active, MULTIKUEUE_CONTROLLER_NAME)}
        flavors = flavor_views(("one@rack",))
        result = compute_active_status(view, terminating=False, flavors=flavors, topologies=(), checks=known)
        assert result.active is is_active
    assert result.message == inactive_message("references inactive AdmissionCheck(s): elsewhere", NO_RACK)


def test_invalid_combinations_of_multikueue_checks_are_reported() -> None:
    rules = [{"name": "b"}, {"name": "a"}, {"name": "p", "onFlavors": ["one"]}, {"name": "c", "onFlavors": ["two"]}]
    groups = [group(one={"cpu": 1}, two={"cpu": 1})]
    view = cluster_queue_view(queue("cq", groups=groups, admissionChecksStrategy={"admissionChecks": rules}))
    known = {
        name: AdmissionCheckInfo(True, PROVISIONING_CONTROLLER_NAME if name == "p" else MULTIKUEUE_CONTROLLER_NAME)
        for name in "abcp"
    }
    flavors = flavor_views(("one", "two"))
    result = compute_active_status(view, terminating=False, flavors=flavors, topologies=(), checks=known)
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
