"""The views of ClusterQueues, Cohorts, LocalQueues and flavors."""

from typing import Any

import pytest

import make
from batchyard.api.views.node import flavor_view
from batchyard.api.views.workload import (
    FlavorFungibility,
    FlavorResourceQuota,
    PreemptionRules,
    cluster_queue_view,
    cohort_view,
    local_queue_view,
)
from yard import cohort, group, queue, quota


def test_cluster_queue_view_reads_quotas_and_limits() -> None:
    view = cluster_queue_view(
        queue("cq", groups=[group(a={"cpu": quota("1500m", 1, 0), "memory": "1Ki"}, b={"cpu": 2})])
    )
    (one,) = view.groups
    assert (one.resources, one.flavors) == (("cpu", "memory"), ("a", "b"))
    assert one.quotas == (
        FlavorResourceQuota("a", "cpu", 1500, 1000, 0),
        FlavorResourceQuota("a", "memory", 1024, None, None),
        FlavorResourceQuota("b", "cpu", 2000, None, None),
    )


def test_cluster_queue_view_has_upstream_defaults() -> None:
    view = cluster_queue_view({"metadata": {"name": "cq"}})
    assert (view.cohort, view.groups, view.strict_fifo, view.namespaces) == ("", (), False, None)
    assert (view.preemption, view.fungibility) == (PreemptionRules(), FlavorFungibility())
    assert (view.stop_policy, view.weight, view.admission_checks) == ("None", 1.0, ())


def test_cluster_queue_view_reads_all_fields() -> None:
    view = cluster_queue_view(
        queue(
            "cq",
            cohort="all",
            queueingStrategy="StrictFIFO",
            stopPolicy="Hold",
            preemption={
                "withinClusterQueue": "LowerPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 7},
            },
            flavorFungibility={
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch",
                "preference": "PreemptionOverBorrowing",
            },
            admissionChecksStrategy={"admissionChecks": [{"name": "a"}]},
        )
    )
    assert (view.cohort, view.strict_fifo, view.stop_policy, view.admission_checks) == ("all", True, "Hold", ("a",))
    assert view.preemption == PreemptionRules("LowerPriority", "Any", True, 7)
    assert view.fungibility == FlavorFungibility(True, False, True)


@pytest.mark.parametrize(
    ("given", "weight"), [(1, 1.0), ("2", 2.0), ("500m", 0.5), (0, 0.0), ("1e-3", 0.001), ("100m", 0.1), ("3", 3.0)]
)
def test_fair_sharing_weight_is_read_as_float(given: Any, weight: float) -> None:
    assert cluster_queue_view(queue("cq", weight=given)).weight == weight
    assert cohort_view(cohort("c", weight=given)).weight == weight


def test_borrow_within_cohort_policy_never_is_off() -> None:
    view = cluster_queue_view(queue("cq", preemption={"borrowWithinCohort": {"policy": "Never"}}))
    assert not view.preemption.borrow_within_cohort


def test_cohort_view_reads_parent_and_quota() -> None:
    view = cohort_view(cohort("team", 3, parent="root"))
    assert (view.name, view.parent, view.weight, view.groups[0].quotas[0].nominal) == ("team", "root", 1.0, 3000)
    assert cohort_view({"metadata": {"name": "x"}}).parent == ""


def test_local_queue_view_reads_cluster_queue() -> None:
    view = local_queue_view(make.local_queue(stopPolicy="HoldAndDrain"))
    assert (view.key, view.cluster_queue, view.stop_policy) == ("team/lq", "cq", "HoldAndDrain")
    bare = local_queue_view({"metadata": {"name": "lq"}})
    assert (bare.key, bare.cluster_queue, bare.stop_policy) == ("/lq", "", "None")


def test_flavor_view_keeps_only_taints_that_block_scheduling() -> None:
    taints = [{"key": name, "effect": name} for name in ("NoSchedule", "PreferNoSchedule", "NoExecute")]
    view = flavor_view(make.flavor(labels={"a": "b"}, nodeTaints=taints, tolerations=[{"operator": "Exists"}]))
    assert ([t.key for t in view.taints], view.labels) == (["NoSchedule", "NoExecute"], {"a": "b"})
    assert len(view.tolerations) == 1
    assert flavor_view({"metadata": {"name": "x"}}).labels == {}
