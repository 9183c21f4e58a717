"""Changes of Workloads by their spec, their queues and time."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition, with_path
from batchyard.controller_runtime.events import ignore_result
from batchyard.interfaces.client import Update
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from stage import Stage, condition_state


def admitted_workload(**spec: Any) -> Obj:
    return lifecycle.reserve_quota(make.workload(**spec), make.admission(), make.NOW, admitted=True)


def open_stage(**queue: Any) -> Stage:
    stage = Stage(WorkloadLifecycle())
    stage.put(make.namespace(), make.cluster_queue(**queue), make.local_queue())
    return stage


#: The spec of a ClusterQueue with one admission check.
CHECKED: dict[str, Any] = {"admissionChecksStrategy": {"admissionChecks": [{"name": "c", "onFlavors": ["spot"]}]}}


def set_active(stage: Stage, active: bool) -> None:
    stage.put(with_path(stage.workload(), ("spec", "active"), active))


def release(stage: Stage) -> None:
    stage.put(evictions.release_after_eviction(stage.workload(), stage.kernel.now()))


def test_controller_writes_nothing_without_due_changes() -> None:
    stage = open_stage()
    stage.put(make.workload("fresh"), admitted_workload())
    assert "status" not in stage.workload("fresh")
    assert stage.workload()["metadata"]["resourceVersion"] == "5"


def test_missing_local_queue_is_reported_until_creation() -> None:
    stage = Stage(WorkloadLifecycle())
    stage.put(make.workload(), make.namespace(), make.cluster_queue())
    assert condition_state(stage.workload(), "QuotaReserved") == (
        "False",
        "Misconfigured",
        "LocalQueue lq doesn't exist",
    )
    assert condition_state(stage.workload(), "Admitted")[1] == "NoReservation"
    stage.put(make.local_queue())
    waiting = "Workload is pending evaluation in the scheduling queue"
    assert condition_state(stage.workload(), "QuotaReserved") == ("False", "PendingEvaluation", waiting)


def test_inactive_cluster_queue_is_reported() -> None:
    stage = open_stage()
    stage.put(make.workload())
    stage.put(make.cluster_queue(active=False))
    assert condition_state(stage.workload(), "QuotaReserved")[1:] == ("Suspended", "ClusterQueue cq is inactive")
    stage.put(make.cluster_queue())
    assert condition_state(stage.workload(), "QuotaReserved")[1] == "PendingEvaluation"


def test_deactivated_workload_is_evicted() -> None:
    stage = open_stage()
    stage.put(admitted_workload())
    set_active(stage, active=False)
    assert condition_state(stage.workload(), "Evicted") == ("True", "Deactivated", "The workload is deactivated")
    assert [(e.reason, e.message) for e in stage.events] == [("EvictedDueToDeactivated", "The workload is deactivated")]
    release(stage)
    assert condition_state(stage.workload(), "QuotaReserved")[1:] == ("Deactivated", "The workload is deactivated")


def test_admission_without_reservation_is_removed() -> None:
    stage = open_stage()
    pending = lifecycle.set_pending(admitted_workload(), "Pending", "reset by another client", make.NOW)
    stage.put(with_path(pending, ("status", "admission"), make.admission()))
    assert "admission" not in stage.workload()["status"]
    assert stage.workload()["status"]["conditions"] != []


def test_status_fields_of_earlier_release_move_to_kueue_manager() -> None:
    stage, wl = open_stage(), admitted_workload()
    fields: Obj = {"f:status": {"f:admission": {"f:clusterQueue": {}}}}
    former = {"manager": "batchyard", "operation": "Update", "subresource": "status", "fieldsV1": fields}
    stage.put(make.workload())
    stage.client.submit([Update({**wl, "metadata": stage.workload()["metadata"]}, [former])], ignore_result)
    stage.run(1)
    assert stage.workload()["metadata"]["managedFields"] == [
        {**former, "manager": "kueue-admission", "operation": "Apply"}
    ]


def test_reactivated_workload_is_requeued() -> None:
    stage = open_stage()
    stage.put(admitted_workload())
    set_active(stage, active=False)
    release(stage)
    set_active(stage, active=True)
    assert condition_state(stage.workload(), "Requeued") == ("True", "Reactivated", "The workload was reactivated")
    assert condition_state(stage.workload(), "QuotaReserved")[1] == "PendingEvaluation"


def test_workload_without_quota_is_deactivated_without_event() -> None:
    stage = open_stage()
    stage.put(make.workload(active=False))
    assert condition_state(stage.workload(), "Evicted")[1] == "Deactivated"
    assert stage.events == []


def test_workload_is_deactivated_at_maximum_execution_time() -> None:
    stage = open_stage()
    stage.put(admitted_workload(maximumExecutionTimeSeconds=30))
    stage.run(29)
    assert stage.workload()["spec"].get("active") is None
    stage.run(30)
    assert stage.workload()["spec"]["active"] is False
    assert condition_state(stage.workload(), "Evicted")[1] == "DeactivatedDueToMaximumExecutionTimeExceeded"
    assert find_condition(stage.workload(), "DeactivationTarget") is None
    cause = "DeactivatedDueToMaximumExecutionTimeExceeded"
    assert stage.reasons() == ["MaximumExecutionTimeExceeded", f"EvictedDueTo{cause}"]


def test_earlier_runs_count_towards_maximum_execution_time() -> None:
    stage = open_stage()
    wl = admitted_workload(maximumExecutionTimeSeconds=30)
    stage.put(with_path(wl, ("status", "accumulatedPastExecutionTimeSeconds"), 20))
    stage.run(10)
    assert stage.workload()["spec"]["active"] is False


def test_maximum_execution_time_continues_after_readmission() -> None:
    stage = open_stage()
    stage.put(admitted_workload(maximumExecutionTimeSeconds=30))
    stage.run(20)
    evicted = evictions.evict(stage.workload(), reason="Preempted", message="", now=make.at(20))
    stage.put(evictions.release_after_eviction(evicted, make.at(20)))
    stage.kernel.call_at(make.at(40), lambda: None)
    stage.run(40)
    stage.put(lifecycle.reserve_quota(stage.workload(), make.admission(), make.at(40), admitted=True))
    stage.run(49)
    assert stage.workload()["spec"].get("active") is None
    stage.run(50)
    assert stage.workload()["spec"]["active"] is False


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_drained_queue_evicts_and_restart_requeues(kind: str) -> None:
    stage = open_stage()
    stage.put(admitted_workload())
    queue = make.cluster_queue if kind == "ClusterQueue" else make.local_queue
    stage.put(queue(stopPolicy="HoldAndDrain"))
    assert condition_state(stage.workload(), "Evicted") == ("True", f"{kind}Stopped", f"The {kind} is stopped")
    assert stage.reasons() == [f"EvictedDueTo{kind}Stopped"]
    release(stage)
    assert condition_state(stage.workload(), "Requeued")[:2] == ("False", f"{kind}Stopped")
    stage.put(queue())
    restarted = f"The {kind} was restarted after being stopped"
    assert condition_state(stage.workload(), "Requeued") == ("True", f"{kind}Restarted", restarted)


def test_requeue_after_cluster_queue_restart_waits_for_local_queue() -> None:
    stage = open_stage()
    stage.put(admitted_workload())
    stage.put(make.cluster_queue(stopPolicy="HoldAndDrain"))
    release(stage)
    stage.put(make.local_queue(stopPolicy="Hold"))
    stage.put(make.cluster_queue())
    assert condition_state(stage.workload(), "Requeued")[:2] == ("False", "ClusterQueueStopped")
    stage.put(make.local_queue())
    assert condition_state(stage.workload(), "Requeued")[:2] == ("True", "ClusterQueueRestarted")


def test_queue_on_hold_keeps_admitted_workloads() -> None:
    stage = open_stage()
    stage.put(admitted_workload())
    stage.put(make.local_queue(stopPolicy="Hold"), make.cluster_queue(stopPolicy="Hold"))
    assert find_condition(stage.workload(), "Evicted") is None


@pytest.mark.parametrize(
    "queue", [make.local_queue(stopPolicy="Hold"), make.cluster_queue(stopPolicy="HoldAndDrain", **CHECKED)]
)
def test_stopped_queue_releases_reservations(queue: Obj) -> None:
    stage = open_stage(**CHECKED)
    checks = [{"name": "c", "state": "Pending"}]
    waiting = make.workload(status={"admissionChecks": checks})
    stage.put(lifecycle.reserve_quota(waiting, make.admission(), make.NOW, admitted=True))
    stage.put(queue)
    assert condition_state(stage.workload(), "QuotaReserved")[0] == "False"
    assert "admission" not in stage.workload()["status"]


def test_ready_checks_admit_workload() -> None:
    stage = open_stage(**CHECKED)
    checks = [{"name": "c", "state": "Pending"}]
    wl = lifecycle.reserve_quota(make.workload(status={"admissionChecks": checks}), make.admission(), make.NOW, True)
    stage.put(wl)
    stage.kernel.call_at(make.at(7), lambda: None)
    stage.run(7)
    stage.put(with_path(stage.workload(), ("status", "admissionChecks"), [{"name": "c", "state": "Ready"}]))
    assert condition_state(stage.workload(), "Admitted")[0] == "True"
    assert [e.message for e in stage.events] == ["Admitted by ClusterQueue cq, wait time since reservation was 7s"]


def test_backoff_finishes_at_requeue_at() -> None:
    stage = open_stage()
    evicted = evictions.evict(admitted_workload(), reason="PodsReadyTimeout", message="slow", now=make.NOW)
    wl = evictions.release_after_eviction(evicted, make.NOW)
    stage.put(with_path(wl, ("status", "requeueState"), {"count": 1, "requeueAt": make.stamp(60)}))
    stage.run(59)
    assert condition_state(stage.workload(), "Requeued")[0] == "False"
    stage.run(60)
    assert condition_state(stage.workload(), "Requeued")[:2] == ("True", "BackoffFinished")
    assert stage.workload()["status"]["requeueState"] == {"count": 1}


def test_admission_gate_is_reported_and_cleared() -> None:
    stage = open_stage()
    stage.put(make.workload(annotations={"kueue.x-k8s.io/admission-gated-by": "someone"}))
    assert condition_state(stage.workload(), "QuotaReserved")[1:] == (
        "AdmissionGated",
        "Admission is gated by: someone",
    )
    stage.put(with_path(stage.workload(), ("metadata", "annotations"), None))
    cleared = ("PendingEvaluation", "AdmissionGatedBy cleared, waiting for quota reservation")
    assert condition_state(stage.workload(), "QuotaReserved")[1:] == cleared
    assert stage.reasons() == ["AdmissionGated", "AdmissionGateCleared"]


@pytest.mark.parametrize(
    ("queue", "spec", "reason"),
    [
        pytest.param(None, {}, "Misconfigured", id="no queue"),
        pytest.param({"stopPolicy": "Hold"}, {}, "Suspended", id="stopped queue"),
        pytest.param({}, {"active": False}, "Deactivated", id="inactive"),
    ],
)
def test_gated_workload_keeps_the_reason_that_comes_first(
    queue: dict[str, Any] | None, spec: dict[str, Any], reason: str
) -> None:
    # The stage would never settle if two steps replaced each other's reason.
    stage = Stage(WorkloadLifecycle())
    stage.put(make.namespace(), make.cluster_queue())
    if queue is not None:
        stage.put(make.local_queue(**queue))
    stage.put(make.workload(annotations={"kueue.x-k8s.io/admission-gated-by": "someone"}, **spec))
    assert condition_state(stage.workload(), "QuotaReserved")[1] == reason
    stage.put(make.local_queue(), with_path(stage.workload(), ("spec", "active"), True))
    assert condition_state(stage.workload(), "QuotaReserved")[1] == "AdmissionGated"


def test_orphan_is_finished_without_finalizer() -> None:
    stage = open_stage()
    orphan = with_path(admitted_workload(), ("metadata", "labels"), {"kueue.x-k8s.io/job-uid": "gone"})
    stage.put(with_path(orphan, ("metadata", "finalizers"), ["kueue.x-k8s.io/resource-in-use"]))
    assert condition_state(stage.workload(), "Finished") == (
        "True",
        "OwnerNotFound",
        "The workload's owner no longer exists",
    )
    assert "finalizers" not in stage.workload()["metadata"]


def test_deleted_workload_without_owner_is_removed() -> None:
    stage = open_stage()
    stage.put(with_path(admitted_workload(), ("metadata", "finalizers"), ["kueue.x-k8s.io/resource-in-use"]))
    stage.delete(scheme.WORKLOAD, "wl")
    assert stage.workloads() == []


def test_moved_workload_follows_new_queue() -> None:
    stage = open_stage()
    stage.put(make.workload(), make.local_queue("other", cluster_queue="cq"))
    stage.put(with_path(stage.workload(), ("spec", "queueName"), "other"))
    stage.put(make.local_queue(stopPolicy="Hold"))
    assert "status" not in stage.workload()
    stage.put(make.local_queue("other", stopPolicy="Hold"))
    assert condition_state(stage.workload(), "QuotaReserved")[2] == "LocalQueue other is inactive"


def test_finished_workload_is_not_evicted() -> None:
    stage = open_stage()
    stage.put(lifecycle.finish(admitted_workload(), "Succeeded", "", make.NOW))
    stage.put(make.cluster_queue(stopPolicy="HoldAndDrain"))
    assert find_condition(stage.workload(), "Evicted") is None
