"""The status of ClusterQueues, LocalQueues and Cohorts, and when it is written."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.errors import Conflict
from batchyard.api.meta import Obj, key_of, with_path
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.queue_status import BATCH_KEY, QueueStatusController
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from stage import Stage, condition_state
from yard import cohort, group, queue, workload


def open_stage(*objects: Obj, fair_sharing: bool = False) -> Stage:
    index = SchedulerCache()
    policy = SchedulingPolicy(fair_sharing=fair_sharing)
    stage = Stage(Scheduler(index, policy), QueueStatusController(index, fair_sharing=fair_sharing))
    stage.put(make.namespace(), *objects)
    return stage


def team(*objects: Obj, **spec: Any) -> Stage:
    """A ClusterQueue `cq` of 4 cpu with its LocalQueue and more objects."""
    local = make.local_queue("cq", cluster_queue="cq")
    return open_stage(make.flavor("spot"), queue("cq", 4, active=None, **spec), local, *objects)


def cluster_queue(stage: Stage, name: str = "cq") -> Mapping[str, Any]:
    return stage.get(scheme.CLUSTER_QUEUE, name, "")


def local_queue(stage: Stage, name: str = "cq") -> Mapping[str, Any]:
    return stage.get(scheme.LOCAL_QUEUE, name)


def counts(obj: Mapping[str, Any]) -> tuple[int, int, int]:
    """Pending, reserving and admitted Workloads."""
    status = obj["status"]
    return status["pendingWorkloads"], status["reservingWorkloads"], status["admittedWorkloads"]


# Conditions.


def test_new_queue_is_ready() -> None:
    stage = team()
    assert condition_state(cluster_queue(stage), "Active") == ("True", "Ready", "Can admit new workloads")
    assert condition_state(local_queue(stage), "Active") == ("True", "Ready", "Can submit new workloads to localQueue")
    assert counts(cluster_queue(stage)) == counts(local_queue(stage)) == (0, 0, 0)


def test_missing_flavor_is_reported_until_creation() -> None:
    stage = team(queue("cq", groups=[group(new={"cpu": 1})], active=None))
    message = "Can't admit new workloads: references missing ResourceFlavor(s): new."
    assert condition_state(cluster_queue(stage), "Active") == ("False", "FlavorNotFound", message)
    assert condition_state(local_queue(stage), "Active") == (
        "False",
        "ClusterQueueIsInactive",
        "Can't submit new workloads to clusterQueue",
    )
    stage.put(make.flavor("new"))
    assert (
        condition_state(cluster_queue(stage), "Active")[1]
        == condition_state(local_queue(stage), "Active")[1]
        == "Ready"
    )


def test_status_of_other_writer_is_corrected() -> None:
    stage = team()
    for result in (cluster_queue(stage), local_queue(stage)):
        stage.put(with_path(result, ("status", "pendingWorkloads"), 77))
    stage.run(1)
    assert counts(cluster_queue(stage)) == counts(local_queue(stage)) == (0, 0, 0)


def test_event_of_earlier_own_write_starts_no_write_at_once() -> None:
    """Such a write would be based on the object before the later write in flight, and be rejected as a conflict."""
    index = SchedulerCache()
    scheduler, status = Scheduler(index, SchedulingPolicy()), QueueStatusController(index, fair_sharing=False)
    now, old = make.NOW, make.local_queue("cq", cluster_queue="cq")
    key = key_of(old)
    scheduler.keys_for(WatchEvent(EventType.ADDED, key, old, None, 1), now)
    (earlier_write,) = status.reconcile(key, {key: old}, now).writes  # type: ignore[arg-type]
    pending = workload("a")
    scheduler.keys_for(WatchEvent(EventType.ADDED, key_of(pending), pending, None, 2), now)
    (later_write,) = status.reconcile(key, {key: old}, now).writes  # type: ignore[arg-type]
    assert earlier_write.obj != later_write.obj  # type: ignore[union-attr]
    event = WatchEvent(EventType.MODIFIED, key, deepcopy(earlier_write.obj), old, 3)  # type: ignore[union-attr]
    assert list(status.keys_for(event, now)) == [BATCH_KEY]
    assert status.reconcile(BATCH_KEY, {key: event.obj}, now).writes == []  # type: ignore[arg-type]
    (corrected,) = status.reconcile(BATCH_KEY, {key: event.obj}, now + SECOND).writes  # type: ignore[arg-type]
    assert corrected.obj["status"] == later_write.obj["status"]  # type: ignore[union-attr]


def test_rejected_status_is_written_with_next_batch() -> None:
    index = SchedulerCache()
    scheduler, status = Scheduler(index, SchedulingPolicy()), QueueStatusController(index, fair_sharing=False)
    now, queue = make.NOW, make.local_queue("cq", cluster_queue="cq")
    key = key_of(queue)
    scheduler.keys_for(WatchEvent(EventType.ADDED, key, queue, None, 1), now)
    pending = workload("a")
    for controller in (scheduler, status):
        controller.keys_for(WatchEvent(EventType.ADDED, key_of(pending), pending, None, 2), now)
    objects: Any = {key: queue}
    status.reconcile(BATCH_KEY, objects, now)
    result = status.reconcile(BATCH_KEY, objects, now + SECOND)
    assert result.on_result is not None
    assert result.on_result(result.writes[0], Conflict("changed"))
    status.reconcile(BATCH_KEY, objects, now + SECOND)
    (repeated,) = status.reconcile(BATCH_KEY, objects, now + 2 * SECOND).writes
    assert counts(repeated.obj) == (1, 0, 0)  # type: ignore[union-attr]


def test_controller_skips_own_write_and_follows_spec_change() -> None:
    index = SchedulerCache()
    scheduler, status = Scheduler(index, SchedulingPolicy()), QueueStatusController(index, fair_sharing=False)
    now, old = make.NOW, make.local_queue("cq", cluster_queue="cq")
    key = key_of(old)
    scheduler.keys_for(WatchEvent(EventType.ADDED, key, old, None, 1), now)
    (write,) = status.reconcile(key, {key: old}, now).writes  # type: ignore[arg-type]
    echo = deepcopy(write.obj)  # type: ignore[union-attr]
    assert list(status.keys_for(WatchEvent(EventType.MODIFIED, key, echo, old, 2), now)) == []
    held = with_path(deepcopy(echo), ("spec", "stopPolicy"), "Hold")
    assert list(status.keys_for(WatchEvent(EventType.MODIFIED, key, held, echo, 3), now)) == [key]


def test_local_queue_reports_missing_cluster_queue() -> None:
    stage = open_stage(make.local_queue("cq", cluster_queue="cq"), make.flavor("spot"))
    message = "Can't submit new workloads to clusterQueue"
    assert condition_state(local_queue(stage), "Active") == ("False", "ClusterQueueDoesNotExist", message)
    stage.put(queue("cq", 4, active=None))
    assert condition_state(local_queue(stage), "Active")[1] == "Ready"


def test_updated_local_queue_reports_deleted_cluster_queue() -> None:
    stage = team()
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    stage.put(with_path(local_queue(stage), ("metadata", "labels"), {"x": "y"}))
    assert condition_state(local_queue(stage), "Active")[1] == "ClusterQueueDoesNotExist"
    assert not {"flavorsReservation", "flavorsUsage"} & local_queue(stage)["status"].keys()


def test_workloads_are_counted_without_cluster_queue() -> None:
    stage = open_stage(
        make.flavor("spot"), make.local_queue("cq", cluster_queue="cq"), workload("a", 9), workload("b", 9)
    )
    stage.run(2)
    assert counts(local_queue(stage)) == (2, 0, 0)
    stage.put(with_path(stage.get(scheme.WORKLOAD, "a"), ("spec", "active"), value=False))
    stage.run(4)
    assert counts(local_queue(stage)) == (1, 0, 0)


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_stopped_local_queue_is_reported(policy: str) -> None:
    stage = team(workload("a", 9))
    stage.put(make.local_queue("cq", cluster_queue="cq", stopPolicy=policy))
    stage.run(3)
    assert condition_state(local_queue(stage), "Active") == ("False", "Stopped", "LocalQueue is stopped")
    assert (counts(local_queue(stage))[0], counts(cluster_queue(stage))[0]) == (0, 0)


def test_stopped_cluster_queue_is_reported() -> None:
    stage = team()
    stage.put(queue("cq", 4, stopPolicy="Hold"))
    assert condition_state(cluster_queue(stage), "Active")[1] == "Stopped"
    assert condition_state(local_queue(stage), "Active")[1] == "ClusterQueueIsInactive"


def test_condition_has_observed_generation() -> None:
    stage = team()
    (condition,) = cluster_queue(stage)["status"]["conditions"]
    assert condition["observedGeneration"] == cluster_queue(stage)["metadata"]["generation"]


# Counts and usage.


def one_running_two_pending() -> Stage:
    """One running and two pending Workloads."""
    stage = team(queue("lender", 4, cohort="all"), cohort="all")
    stage.put(workload("a", 5))
    stage.put(workload("b", 9), workload("c", 9))
    return stage


def test_counts_are_written_together_after_one_second() -> None:
    stage = one_running_two_pending()
    assert counts(cluster_queue(stage)) == (0, 0, 0)
    stage.run(1)
    assert counts(cluster_queue(stage)) == counts(local_queue(stage)) == (2, 1, 1)


def test_usage_is_reported_by_flavor_and_resource() -> None:
    stage = one_running_two_pending()
    stage.run(1)
    status = cluster_queue(stage)["status"]
    assert status["flavorsReservation"] == [
        {"name": "spot", "resources": [{"name": "cpu", "total": "5", "borrowed": "1"}]}
    ]
    assert status["flavorsUsage"] == status["flavorsReservation"]
    usage = [{"name": "spot", "resources": [{"name": "cpu", "total": "5"}]}]
    assert local_queue(stage)["status"]["flavorsUsage"] == usage
    assert local_queue(stage)["status"]["flavorsReservation"] == usage


def test_flavors_of_all_groups_are_listed_in_order() -> None:
    groups = [group(two={"memory": "4Gi", "cpu": 4}, one={"memory": "1Gi", "cpu": 1}), group(v100={"gpu": 2})]
    flavors = [make.flavor(name) for name in ("one", "two", "v100")]
    stage = open_stage(*flavors, queue("cq", groups=groups), make.local_queue("cq", cluster_queue="cq"))
    stage.put(workload("a", pod_sets=[make.pod_set(requests={"cpu": "500m", "memory": "1Gi", "gpu": 1})]))
    stage.run(1)
    listed = [
        (f["name"], [(r["name"], r["total"]) for r in f["resources"]])
        for f in cluster_queue(stage)["status"]["flavorsUsage"]
    ]
    assert listed == [
        ("two", [("cpu", "500m"), ("memory", "1Gi")]),
        ("one", [("cpu", "0"), ("memory", "0")]),
        ("v100", [("gpu", "1")]),
    ]


def test_queue_without_cohort_reports_no_borrowing() -> None:
    stage = team()
    stage.put(workload("a", 4))
    stage.put(queue("cq", 1))
    stage.run(1)
    (flavor,) = cluster_queue(stage)["status"]["flavorsUsage"]
    assert flavor["resources"] == [{"name": "cpu", "total": "4", "borrowed": "0"}]


def test_reserved_quota_is_not_reported_as_used() -> None:
    admission = make.admission("cq")
    stage = team(lifecycle.reserve_quota(workload("a"), admission, make.NOW, admitted=False))
    stage.run(1)
    status = cluster_queue(stage)["status"]
    assert counts(cluster_queue(stage)) == (0, 1, 0)
    assert [status[f][0]["resources"][0]["total"] for f in ("flavorsReservation", "flavorsUsage")] == ["1", "0"]


def test_counts_decrease_when_workloads_finish() -> None:
    stage = one_running_two_pending()
    stage.run(1)
    stage.put(lifecycle.finish(stage.workload("a"), "Succeeded", "", stage.kernel.now()))
    stage.delete(scheme.WORKLOAD, "b")
    stage.run(3)
    assert counts(cluster_queue(stage)) == counts(local_queue(stage)) == (1, 0, 0)


def test_local_queue_counts_only_its_own_workloads() -> None:
    stage = team(make.local_queue("other", cluster_queue="cq"))
    stage.put(workload("a"), workload("b", queue="other"), workload("c", 9, queue="other"))
    stage.run(1)
    assert (counts(local_queue(stage)), counts(local_queue(stage, "other"))) == ((0, 1, 1), (1, 1, 1))
    assert counts(cluster_queue(stage)) == (1, 2, 2)


def test_workload_of_missing_local_queue_is_not_counted() -> None:
    stage = team()
    stage.put(workload("a", queue="nowhere"))
    stage.run(2)
    assert counts(cluster_queue(stage)) == (0, 0, 0)


def test_unchanged_status_is_not_written() -> None:
    stage = one_running_two_pending()
    stage.run(2)
    before = cluster_queue(stage)["metadata"]["resourceVersion"]
    stage.put(with_path(stage.workload("b"), ("metadata", "labels"), {"x": "y"}))
    stage.run(5)
    assert cluster_queue(stage)["metadata"]["resourceVersion"] == before


def test_flush_writes_counts_at_once() -> None:
    stage = one_running_two_pending()
    stage.runner.flush_delayed(("queue-status",))
    stage.settle()
    assert counts(cluster_queue(stage)) == (2, 1, 1)


def test_deleted_queue_is_not_written() -> None:
    stage = one_running_two_pending()
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    stage.delete(scheme.LOCAL_QUEUE, "cq")
    stage.run(3)
    assert stage.client.is_settled()


# Shares.


def test_own_status_write_triggers_no_reconcile() -> None:
    stage = team()
    stage.put(workload("a", 2))
    stage.run(0.5)
    (queue,) = [queue for queue in stage.runner._queue.queues if queue.controller.name == "queue-status"]
    before = queue.reconciles
    stage.run(2)
    assert (counts(cluster_queue(stage)), queue.reconciles) == ((0, 1, 1), before + 1)


def test_shares_are_reported_only_with_fair_sharing() -> None:
    for fair_sharing in (False, True):
        stage = open_stage(
            make.flavor("spot"),
            cohort("root", 4),
            cohort("team", 0, parent="root"),
            queue("cq", 0, cohort="team", weight=2),
            make.local_queue("cq", cluster_queue="cq"),
            fair_sharing=fair_sharing,
        )
        stage.put(workload("a", 2))
        stage.run(2)
        share = {"fairSharing": {"weightedShare": 250}} if fair_sharing else {}
        assert {k: v for k, v in cluster_queue(stage)["status"].items() if k == "fairSharing"} == share
        assert ("fairSharing" in (stage.get(scheme.COHORT, "team", "").get("status") or {})) is fair_sharing


def test_borrowing_cohort_with_zero_weight_has_largest_share() -> None:
    stage = open_stage(
        make.flavor("spot"),
        cohort("root", 4),
        cohort("team", 0, parent="root", weight=0),
        queue("cq", 0, cohort="team"),
        make.local_queue("cq", cluster_queue="cq"),
        fair_sharing=True,
    )
    stage.put(workload("a", 2))
    stage.run(2)
    assert stage.get(scheme.COHORT, "team", "")["status"]["fairSharing"] == {"weightedShare": 2**63 - 1}


def test_share_of_cohort_follows_usage_of_its_queues() -> None:
    stage = open_stage(
        make.flavor("spot"),
        cohort("root", 4),
        cohort("team", 0, parent="root"),
        queue("cq", 0, cohort="team"),
        make.local_queue("cq", cluster_queue="cq"),
        fair_sharing=True,
    )
    shares = []
    for name, cpu in (("a", 2), ("b", 1)):
        stage.put(workload(name, cpu))
        stage.run(2)
        shares.append(stage.get(scheme.COHORT, "team", "")["status"]["fairSharing"]["weightedShare"])
    assert shares == [500, 750]


def test_missing_check_is_reported_until_creation() -> None:
    stage = team(admissionChecksStrategy={"admissionChecks": [{"name": "check"}]})
    assert condition_state(cluster_queue(stage), "Active")[1] == "AdmissionCheckNotFound"
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "check"},
        "spec": {},
        "status": {"conditions": [make.condition("Active")]},
    }
    stage.put(check)
    assert [condition_state(obj, "Active")[0] for obj in (cluster_queue(stage), local_queue(stage))] == ["True", "True"]


def test_former_queue_of_moved_workload_is_updated() -> None:
    stage = team(make.local_queue("other", cluster_queue="cq"), workload("a", 9))
    stage.run(1)
    assert counts(local_queue(stage)) == (1, 0, 0)
    stage.put(workload("a", 9, queue="other"))
    stage.run(3)
    assert (counts(local_queue(stage)), counts(local_queue(stage, "other"))) == ((0, 0, 0), (1, 0, 0))


def test_released_quota_is_reported_after_deletion_of_local_queue() -> None:
    stage = team(workload("a"))
    stage.run(1)
    assert counts(cluster_queue(stage)) == (0, 1, 1)
    stage.delete(scheme.LOCAL_QUEUE, "cq")
    stage.run(3)
    stage.put(lifecycle.finish(lifecycle.set_pending(stage.workload("a"), "Why", "", make.NOW), "Done", "", make.NOW))
    stage.run(5)
    assert counts(cluster_queue(stage)) == (0, 0, 0)


def test_objects_unknown_to_scheduler_cache_keep_their_status() -> None:
    """Their watch events are not processed yet."""
    status = QueueStatusController(SchedulerCache(), fair_sharing=True)
    for obj in (queue("cq", 4), cohort("root", 4)):
        known = {**obj, "status": {"fairSharing": {"weightedShare": 5}}}
        assert status.reconcile(key_of(obj), {key_of(obj): known}, make.NOW).writes == []  # type: ignore[arg-type]
