"""Reactivation of inadmissible Workloads: by relevant changes, released quota, and time."""

from typing import Any

import pytest

import make
from admission_watch import AdmissionWatcher, open_queue, parked_queue, workload_with_quota
from batchyard.api import scheme
from batchyard.api.meta import with_metadata, with_path
from batchyard.base.instant import SECOND
from batchyard.scheduling.scheduler_cache import REACTIVATION_GRACE_PERIOD
from batchyard.scheduling.workload import lifecycle
from yard import cohort, group, queue, workload

# Changes that reactivate Workloads.


def test_inadmissible_workload_stays_parked_without_changes() -> None:
    watcher = parked_queue()
    assert watcher.heads() == []
    assert not watcher.put(workload("a", conditions=[make.condition("QuotaReserved", status=False, reason="x")]))


@pytest.mark.parametrize("how", ["delete", "finish", "deactivate", "release", "fewer pods", "lower priority"])
def test_released_quota_reactivates_workloads(how: str) -> None:
    watcher = parked_queue(workload_with_quota("x", 3))
    held = workload_with_quota("x", 3)
    changed = {
        "finish": lifecycle.finish(held, "Done", "", make.NOW),
        "deactivate": with_path(held, ("spec", "active"), value=False),
        "release": workload("x", 3, conditions=[make.condition("Requeued", status=False)]),
        "fewer pods": with_path(held, ("status", "reclaimablePods"), [{"name": "main", "count": 1}]),
        "lower priority": with_path(held, ("spec", "priority"), -5),
    }
    if how == "delete":
        assert watcher.delete(scheme.WORKLOAD, "x", "team")
    else:
        assert watcher.put(changed[how])
    assert watcher.heads() == ["a"]


def test_queue_admits_only_once_topologies_of_its_flavors_exist() -> None:
    watcher = AdmissionWatcher(make.flavor("spot", topologyName="racks"), *open_queue(), workload("a"))
    assert watcher.heads() == []
    assert not watcher.put(make.topology("other"))
    assert watcher.put(make.topology())
    assert watcher.heads() == ["a"]


def test_reservation_reactivates_no_workload() -> None:
    watcher = parked_queue()
    watcher.put(workload_with_quota("x", 3, admitted=False))
    watcher.put(workload_with_quota("x", 3))
    assert watcher.heads() == []


@pytest.mark.parametrize("done", [{"conditions": [make.condition("Finished")]}, {"active": False}])
def test_finished_or_inactive_pending_workload_reactivates_others(done: dict[str, Any]) -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"), workload("b", 2))
    watcher.park()
    watcher.put(workload("b", 2, **done))
    assert watcher.heads() == ["a"]


def test_release_reactivates_whole_tree() -> None:
    objects = [*open_queue("one", cohort="left"), *open_queue("two", cohort="right"), *open_queue("far")]
    tree = [cohort("left", parent="root"), cohort("right", parent="root")]
    heads = [workload(name, queue=name) for name in ("one", "two", "far")]
    watcher = AdmissionWatcher(*tree, *objects, workload_with_quota("x", queue="one"), *heads)
    watcher.park()
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == ["one", "two"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"cpu": 5}, id="more quota"),
        pytest.param({"cpu": 3}, id="less quota"),
        pytest.param({"cohort": "all"}, id="a cohort"),
        pytest.param({"preemption": {"withinClusterQueue": "LowerPriority"}}, id="other rules"),
    ],
)
def test_spec_change_of_queue_reactivates_workloads(spec: dict[str, Any]) -> None:
    watcher = parked_queue()
    cpu = spec.get("cpu", 4)
    assert watcher.put(queue("cq", cpu, **{k: v for k, v in spec.items() if k != "cpu"}))
    assert watcher.heads() == ["a"]


def test_status_change_of_queue_reactivates_no_workload() -> None:
    watcher = parked_queue()
    changed = queue("cq", 4)
    assert not watcher.put({**changed, "status": {"pendingWorkloads": 1}})
    assert watcher.heads() == []


def test_created_or_changed_cohort_reactivates_its_tree() -> None:
    watcher = AdmissionWatcher(*open_queue(cohort="all"), workload("a"), *open_queue("far"), workload("b", queue="far"))
    watcher.park()
    assert watcher.put(cohort("all", 4))
    assert watcher.heads() == ["a"]
    watcher.park()
    watcher.put({**cohort("all", 4), "status": {"x": 1}})
    assert watcher.heads() == []


def test_cohort_without_queues_reactivates_no_workload() -> None:
    watcher = parked_queue()
    assert not watcher.put(cohort("lonely", 4))
    assert watcher.heads() == []


def test_deleted_cohort_reactivates_no_workload() -> None:
    watcher = AdmissionWatcher(cohort("all", 4), *open_queue(cohort="all"), workload("a"))
    watcher.park()
    assert not watcher.delete(scheme.COHORT, "all")
    assert watcher.heads() == []


def test_created_flavor_activates_its_queues_and_their_workloads() -> None:
    watcher = AdmissionWatcher(*open_queue(groups=[group(new={"cpu": 4})]), workload("a"))
    assert (watcher.heads(), watcher.index.active_status("cq").reason) == ([], "FlavorNotFound")
    assert watcher.put(make.flavor("new"))
    assert (watcher.heads(), watcher.index.active_status("cq").reason) == (["a"], "Ready")


def test_changed_flavor_reactivates_only_its_queues() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"), *open_queue("far", groups=[group(other={"cpu": 1})]))
    watcher.put(make.flavor("other"), workload("b", queue="far"))
    watcher.park()
    assert watcher.put(make.flavor("spot", labels={"zone": "a"}))
    assert watcher.heads() == ["a"]


def test_deleted_flavor_deactivates_its_queues() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    watcher.delete(scheme.RESOURCE_FLAVOR, "spot")
    assert (watcher.heads(), watcher.index.active_status("cq").reason) == ([], "FlavorNotFound")


def test_namespace_that_starts_to_match_reactivates_workloads() -> None:
    selector = {"matchLabels": {"tier": "gold"}}
    watcher = AdmissionWatcher(*open_queue(namespaceSelector=selector), workload("a"), *open_queue("far"))
    watcher.park()
    watcher.put(make.namespace(tier="silver"))
    assert watcher.heads() == []
    assert watcher.put(make.namespace(tier="gold"))
    assert watcher.heads() == ["a"]
    watcher.park()
    watcher.put(make.namespace(tier="gold"))
    assert watcher.heads() == []


def test_workloads_of_deleted_namespace_are_not_reactivated() -> None:
    watcher = parked_queue(workload_with_quota("x"))
    watcher.delete(scheme.NAMESPACE, "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == []


CHECK = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "check"}, "spec": {}}


def test_active_admission_check_activates_queue() -> None:
    strategy = {"admissionChecks": [{"name": "check"}]}
    watcher = AdmissionWatcher(*open_queue(admissionChecksStrategy=strategy), *open_queue("far"), workload("a"))
    assert watcher.heads() == []
    watcher.put(CHECK)
    assert watcher.index.active_status("cq").reason == "AdmissionCheckInactive"
    assert watcher.put({**CHECK, "status": {"conditions": [make.condition("Active")]}})
    assert watcher.heads() == ["a"]
    watcher.delete(scheme.ADMISSION_CHECK, "check")
    assert watcher.index.active_status("cq").reason == "AdmissionCheckNotFound"


def test_resumed_queue_returns_its_heads() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    watcher.change(scheme.CLUSTER_QUEUE, "cq", "spec", "stopPolicy", value="Hold")
    assert watcher.heads() == []
    assert watcher.change(scheme.CLUSTER_QUEUE, "cq", "spec", "stopPolicy", value="None")
    assert watcher.heads() == ["a"]


def test_terminating_queue_returns_no_heads() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    watcher.put(with_metadata(queue("cq", 4), deletionTimestamp=make.stamp()))
    assert (watcher.heads(), watcher.index.active_status("cq").reason) == ([], "Terminating")
    watcher.delete(scheme.CLUSTER_QUEUE, "cq")
    watcher.put(queue("cq", 4))
    assert (watcher.heads(), watcher.index.active_status("cq").reason) == (["a"], "Ready")


# LocalQueues.


def test_workloads_of_stopped_local_queue_are_not_pending() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    watcher.put(make.local_queue("cq", cluster_queue="cq", stopPolicy="Hold"), workload("b"))
    assert (watcher.waiting(), watcher.heads()) == ([], [])
    assert watcher.put(make.local_queue("cq", cluster_queue="cq"))
    assert watcher.waiting() == ["a", "b"]


def test_recreated_local_queue_restores_its_workloads() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"), workload_with_quota("x"), workload("done", active=False))
    watcher.delete(scheme.LOCAL_QUEUE, "cq", "team")
    assert watcher.waiting() == []
    watcher.put(make.local_queue("cq", cluster_queue="cq"))
    assert watcher.waiting() == ["a"]


def test_changed_cluster_queue_of_local_queue_moves_workloads() -> None:
    watcher = AdmissionWatcher(*open_queue("cq"), *open_queue("other"), workload("a"))
    watcher.put(make.local_queue("cq", cluster_queue="other"))
    assert (watcher.waiting("cq"), watcher.waiting("other")) == ([], ["a"])
    watcher.put(make.local_queue("cq", cluster_queue="nowhere"))
    assert watcher.waiting("other") == []


def test_status_change_of_local_queue_reactivates_no_workload() -> None:
    watcher = parked_queue()
    watcher.put({**make.local_queue("cq", cluster_queue="cq"), "status": {"pendingWorkloads": 1}})
    assert watcher.heads() == []


def test_late_cluster_queue_adopts_existing_local_queues() -> None:
    watcher = AdmissionWatcher(make.local_queue("cq", cluster_queue="cq"), workload("a"), make.local_queue("other"))
    assert watcher.put(queue("cq", 4))
    assert watcher.heads() == ["a"]


# Quota released without reactivation.


def test_last_release_without_local_queue_reactivates_at_once() -> None:
    watcher = parked_queue(make.local_queue("gone", cluster_queue="cq"), workload_with_quota("x", local_queue="gone"))
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    assert watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == ["a"]


def test_release_without_local_queue_reactivates_after_grace_period() -> None:
    watcher = parked_queue(
        make.local_queue("gone", cluster_queue="cq"),
        workload_with_quota("x", 1, local_queue="gone"),
        workload_with_quota("y", 1),
    )
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert (watcher.heads(), watcher.index.queue_manager.next_release()) == ([], make.NOW + REACTIVATION_GRACE_PERIOD)
    for seconds, heads in ((REACTIVATION_GRACE_PERIOD // SECOND - 1, []), (REACTIVATION_GRACE_PERIOD // SECOND, ["a"])):
        watcher.now = make.at(seconds)
        assert watcher.heads() == heads
    assert watcher.index.queue_manager.next_release() is None


def test_reactivating_release_ends_grace_period() -> None:
    watcher = parked_queue(
        make.local_queue("gone", cluster_queue="cq"),
        workload_with_quota("x", 1, local_queue="gone"),
        workload_with_quota("y", 1),
    )
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    watcher.delete(scheme.WORKLOAD, "y", "team")
    assert (watcher.heads(), watcher.index.queue_manager.next_release()) == (["a"], None)


def test_release_in_stopped_local_queue_starts_grace_period() -> None:
    watcher = parked_queue(workload_with_quota("x"), make.local_queue("stopped", cluster_queue="cq"))
    watcher.put(workload_with_quota("y", local_queue="stopped"))
    watcher.put(make.local_queue("stopped", cluster_queue="cq", stopPolicy="Hold"))
    watcher.delete(scheme.WORKLOAD, "y", "team")
    assert (watcher.heads(), watcher.index.queue_manager.next_release()) == ([], make.NOW + REACTIVATION_GRACE_PERIOD)


# Resting trees and backoffs.


def resting() -> AdmissionWatcher:
    """A resting tree with a queued Workload, and another tree."""
    watcher = AdmissionWatcher(*open_queue(cohort="all"), *open_queue("far"), workload("a"))
    watcher.heads()
    watcher.put(workload("b", created=1))
    watcher.index.queue_manager.pause_tree("cohort/all")
    return watcher


def test_resting_tree_has_no_heads() -> None:
    watcher = resting()
    assert watcher.heads() == []
    watcher.put(workload("far", queue="far"))
    assert watcher.heads() == ["far"]


@pytest.mark.parametrize("what", ["workload", "release", "quota", "cohort", "tree"])
def test_change_in_resting_tree_restarts_it(what: str) -> None:
    watcher = resting()
    changes = {
        "workload": [workload("c", created=2)],
        "release": [workload_with_quota("x"), workload("x", 2, conditions=[make.condition("Requeued", status=False)])],
        "quota": [queue("cq", 5, cohort="all")],
        "cohort": [cohort("elsewhere", 5)],
        "tree": [queue("new", 5, cohort="all")],
    }
    watcher.put(*changes[what])
    assert watcher.heads() == ["b"]


def test_admission_restarts_resting_tree() -> None:
    watcher = resting()
    before = watcher.index.queue_manager.tree_change_counts["cohort/all"]
    watcher.put(workload_with_quota("x"))
    assert (watcher.heads(), watcher.index.queue_manager.tree_change_counts["cohort/all"] > before) == (["b"], True)


def test_frozen_tree_has_no_heads_until_later_change() -> None:
    watcher = AdmissionWatcher(
        *open_queue(cohort="all"), *open_queue("far"), workload("a"), workload("far", queue="far")
    )
    assert watcher.heads() == ["a", "far"]
    watcher.put(workload("b", created=1), workload("far2", queue="far"))
    watcher.index.queue_manager.freeze_tree("cohort/all")
    watcher.put(workload("c", created=2))
    assert watcher.heads() == ["far2"]
    watcher.now += 1
    assert watcher.heads() == []
    watcher.put(workload("d", created=3))
    assert watcher.heads() == ["b"]


def test_held_back_workload_becomes_head_after_backoff() -> None:
    watcher = AdmissionWatcher(*open_queue(), *open_queue("far"))
    for name, place, seconds in (("a", "cq", 10), ("b", "far", 20)):
        watcher.put(workload(name, queue=place, status={"requeueState": {"requeueAt": make.stamp(seconds)}}))
    assert (watcher.heads(), watcher.index.queue_manager.next_release()) == ([], make.at(10))
    watcher.now = make.at(9)
    assert watcher.heads() == []
    watcher.now = make.at(10)
    assert watcher.heads() == ["a"]


def test_queue_in_cohort_cycle_returns_its_head() -> None:
    watcher = AdmissionWatcher(cohort("x", parent="y"), cohort("y", parent="x"), *open_queue(cohort="x"), workload("a"))
    assert watcher.heads() == ["a"]


def test_new_workload_restarts_whole_resting_tree() -> None:
    watcher = resting()
    watcher.put(*open_queue("other", cohort="all"))
    assert watcher.heads() == ["b"]
    watcher.put(workload("c"))
    watcher.index.queue_manager.pause_tree("cohort/all")
    watcher.put(workload("d", queue="other"))
    assert watcher.heads() == ["c", "d"]


def test_cohort_and_queue_with_same_name_are_separate_trees() -> None:
    watcher = AdmissionWatcher(*open_queue("x"), *open_queue("y", cohort="x"), workload_with_quota("x1", 4, queue="x"))
    watcher.put(workload_with_quota("y1", 4, queue="y"), workload("x2", 4, queue="x"), workload("y2", 4, queue="y"))
    watcher.park()
    for name in ("x1", "y1"):
        watcher.delete(scheme.WORKLOAD, name, "team")
    assert watcher.heads() == ["x2", "y2"]


def test_deleted_cohort_restarts_resting_tree_after_settle() -> None:
    watcher = AdmissionWatcher(cohort("all", 4), *open_queue(cohort="all"), workload("a"))
    watcher.index.heads(watcher.now)
    watcher.index.queue_manager.pause_tree("cohort/all")
    assert watcher.heads() == []
    assert watcher.delete(scheme.COHORT, "all")
    watcher.index.snapshot.rebuild_if_changed()
    assert watcher.heads() == ["a"]
