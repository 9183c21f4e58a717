"""The scheduler cache from watch events: pending Workloads and reserved quota."""

from typing import Any

import pytest

import make
from admission_watch import AdmissionWatcher, assume_admission, open_queue, workload_with_quota
from batchyard.api import scheme
from batchyard.api.meta import key_of, with_metadata, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload import evictions, lifecycle
from yard import group, queue, workload

# Pending Workloads.


def test_new_workload_becomes_head() -> None:
    watcher = AdmissionWatcher(*open_queue())
    assert watcher.put(workload("a"))
    assert (watcher.heads(), watcher.heads()) == (["a"], [])


@pytest.mark.parametrize("order", range(3))
def test_workload_becomes_head_in_any_creation_order(order: int) -> None:
    objects = [*open_queue(), workload("a")]
    watcher = AdmissionWatcher(*objects[order:], *objects[:order])
    assert watcher.heads() == ["a"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"active": False}, id="inactive"),
        pytest.param({"conditions": [make.condition("Finished")]}, id="finished"),
        pytest.param({"annotations": {"kueue.x-k8s.io/admission-gated-by": "x"}}, id="gated"),
        pytest.param({"conditions": [make.condition("QuotaReserved", status=False, reason="OnHold")]}, id="on hold"),
        pytest.param({"conditions": [make.condition("WaitingForReplacementPods")]}, id="waiting for pods"),
        pytest.param({"queue": "nowhere"}, id="missing LocalQueue"),
    ],
)
def test_inadmissible_workload_is_not_pending(fields: dict[str, Any]) -> None:
    watcher = AdmissionWatcher(*open_queue())
    watcher.put(workload("a", **fields))
    assert (watcher.waiting(), watcher.heads()) == ([], [])


def test_heads_contain_first_workload_per_queue() -> None:
    watcher = AdmissionWatcher(*open_queue("b"), *open_queue("a"))
    watcher.put(*(workload(f"{name}{n}", queue=name, created=n) for name in "ba" for n in range(2)))
    assert [watcher.heads(), watcher.heads(), watcher.heads()] == [["a0", "b0"], ["a1", "b1"], []]


def test_inactive_queue_has_no_heads() -> None:
    watcher = AdmissionWatcher(*open_queue(stopPolicy="Hold"), workload("a"))
    assert (watcher.heads(), watcher.waiting()) == ([], ["a"])


def test_moved_workload_is_pending_in_new_queue() -> None:
    watcher = AdmissionWatcher(*open_queue("cq"), *open_queue("other"), workload("a"))
    watcher.put(workload("a", queue="other"))
    assert (watcher.waiting("cq"), watcher.waiting("other")) == ([], ["a"])


def test_gated_workload_leaves_queue() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    watcher.put(workload("a", annotations={"kueue.x-k8s.io/admission-gated-by": "x"}))
    assert watcher.waiting() == []


@pytest.mark.parametrize("change", ["delete", "finish", "deactivate", "reserve"])
def test_finished_or_reserved_workload_leaves_queue(change: str) -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a"))
    changed = {
        "finish": workload("a", conditions=[make.condition("Finished")]),
        "deactivate": workload("a", active=False),
        "reserve": workload_with_quota("a"),
    }
    if change == "delete":
        watcher.delete(scheme.WORKLOAD, "a", "team")
    else:
        watcher.put(changed[change])
    assert (watcher.waiting(), watcher.heads()) == ([], [])


# Reserved quota.


def test_reservation_is_read_from_status() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3))
    assert watcher.used() == 3
    held = watcher.index.snapshot.holder("team/x")
    assert held is not None
    assert (held.local_queue, held.reserved_at, held.is_admitted) == ("team/cq", make.NOW, True)


def test_reservation_before_its_queue_is_counted() -> None:
    watcher = AdmissionWatcher(workload_with_quota("x", 3), workload_with_quota("far", 1, queue="far"), *open_queue())
    assert watcher.used() == 3
    watcher.put(*open_queue("far"))
    assert (watcher.used(), watcher.used("far")) == (3, 1)


def test_assumed_admission_with_several_resources_is_confirmed() -> None:
    requests = {"cpu": "1", "memory": "1Gi", "gpu": "1"}
    groups = [group(spot={"cpu": 4, "memory": "4Gi", "gpu": 4})]
    local = make.local_queue("cq", cluster_queue="cq")
    asks = workload("a", pod_sets=[make.pod_set(requests=requests)])
    watcher = AdmissionWatcher(queue("cq", groups=groups), local, asks)
    assume_admission(watcher)
    held = watcher.index.snapshot.holder("team/a")
    assignment = {"name": "main", "count": 1, "flavors": dict.fromkeys(requests, "spot"), "resourceUsage": requests}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    watcher.put(lifecycle.reserve_quota(asks, admission, make.NOW, admitted=False))
    assert watcher.index.snapshot.holder("team/a") is held


def test_usage_of_pod_sets_is_summed_per_flavor() -> None:
    pod_sets = [make.pod_set(name, requests={"cpu": "1"}) for name in ("a", "b")]
    assignments = [
        {"name": name, "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}} for name in ("a", "b")
    ]
    admission = {"clusterQueue": "cq", "podSetAssignments": assignments}
    obj = lifecycle.reserve_quota(workload("x", pod_sets=pod_sets), admission, make.NOW, admitted=True)
    assert AdmissionWatcher(*open_queue(), obj).used() == 2


def test_reclaimable_pods_are_not_counted() -> None:
    pod_sets = [make.pod_set(count=4, requests={"cpu": "1"})]
    assignment = {"name": "main", "count": 4, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "4"}}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    obj = lifecycle.reserve_quota(workload("x", pod_sets=pod_sets), admission, make.NOW, admitted=True)
    watcher = AdmissionWatcher(*open_queue(), obj)
    watcher.put(with_path(obj, ("status", "reclaimablePods"), [{"name": "main", "count": 3}]))
    assert watcher.used() == 1


@pytest.mark.parametrize("how", ["delete", "finish", "deactivate", "release"])
def test_finished_or_released_workload_uses_no_quota(how: str) -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3))
    changed = {
        "finish": lifecycle.finish(workload_with_quota("x", 3), "Done", "", make.NOW),
        "deactivate": with_path(workload_with_quota("x", 3), ("spec", "active"), value=False),
        "release": workload("x", 3),
    }
    if how == "delete":
        watcher.delete(scheme.WORKLOAD, "x", "team")
    else:
        watcher.put(changed[how])
    assert watcher.used() == 0


def test_released_workload_is_pending_again() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3))
    watcher.put(workload("x", 3))
    assert watcher.waiting() == ["x"]


def test_eviction_in_progress_is_recorded() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x"))
    watcher.put(evictions.evict(workload_with_quota("x"), reason="Preempted", message="", now=make.NOW))
    held = watcher.index.snapshot.holder("team/x")
    assert held is not None
    assert held.evicted


def test_assumed_admission_is_counted_before_write() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a", 3))
    assume_admission(watcher)
    held = watcher.index.snapshot.holder("team/a")
    assert held is not None
    assert (watcher.used(), held.is_admitted, held.reserved_at) == (3, False, make.NOW)
    watcher.put(workload_with_quota("a", 3))
    assert watcher.used() == 3


def test_concurrent_change_reverts_assumed_admission() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a", 3))
    watcher.put(with_metadata(assume_admission(watcher), labels={"changed": "meanwhile"}))
    assert (watcher.used(), watcher.heads()) == (0, ["a"])


def test_assumed_admission_of_workload_that_is_gone_is_dropped() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload("a", 3))
    assume_admission(watcher)
    watcher.delete(scheme.WORKLOAD, "a", "team")
    watcher.index.workload_cache.revert_assumption("team/a")
    assert (watcher.used(), watcher.heads(), watcher.waiting()) == (0, [], [])


def test_deletion_of_unknown_workload_changes_nothing() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3))
    gone = workload("gone", 3)
    watcher.index.heads(watcher.now)
    assert not watcher.index.observe(WatchEvent(EventType.DELETED, key_of(gone), gone, gone, 9), watcher.now)
    assert (watcher.used(), watcher.waiting()) == (3, [])


def test_counts_follow_reservations() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3), workload_with_quota("y", 1, admitted=False))
    count, local = (
        watcher.index.workload_cache.cluster_queue_counters.get("cq"),
        watcher.index.workload_cache.local_queue_counters.get("team/cq"),
    )
    assert (count.reserving, count.admitted, local.reserving, local.admitted) == (2, 1, 2, 1)
    watcher.put(workload("x", 3))
    assert (
        watcher.index.workload_cache.cluster_queue_counters.get("cq").reserving,
        watcher.index.workload_cache.local_queue_counters.get("team/cq").admitted,
    ) == (1, 0)


def test_deleted_queue_resets_counts() -> None:
    watcher = AdmissionWatcher(*open_queue(), workload_with_quota("x", 3))
    watcher.delete(scheme.CLUSTER_QUEUE, "cq")
    assert watcher.index.workload_cache.cluster_queue_counters.get("cq").reserving == 0
    assert watcher.index.workload_cache.local_queue_counters.get("team/cq").reserving == 0
    assert watcher.heads() == []
