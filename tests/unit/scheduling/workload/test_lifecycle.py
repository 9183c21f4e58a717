"""State transitions of a Workload."""

from collections.abc import Callable

import pytest

import make
from batchyard.api.meta import Obj, find_condition, is_true
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import Status
from stage import condition_state

NOW = make.NOW


def reserved_workload() -> Obj:
    return lifecycle.reserve_quota(make.workload(), make.admission(), NOW, admitted=False)


def admitted_workload() -> Obj:
    return lifecycle.reserve_quota(make.workload(), make.admission(), NOW, admitted=True)


def evicted_workload(reason: str = "Preempted", after: float = 10) -> Obj:
    return evictions.evict(admitted_workload(), reason=reason, message="because", now=make.at(after))


def test_reserve_quota_admits_without_required_checks() -> None:
    wl = admitted_workload()
    assert condition_state(wl, "QuotaReserved") == ("True", "QuotaReserved", "Quota reserved in ClusterQueue cq")
    assert condition_state(wl, "Admitted") == ("True", "Admitted", "The workload is admitted")
    assert wl["status"]["admission"] == make.admission()


def test_reserve_quota_sets_no_admitted_condition_with_missing_check() -> None:
    wl = reserved_workload()
    assert lifecycle.status(wl) is Status.QUOTA_RESERVED
    assert find_condition(wl, "Admitted") is None


def test_pending_check_blocks_admission() -> None:
    checks = [{"name": "check", "state": "Pending"}]
    wl = lifecycle.reserve_quota(
        make.workload(status={"admissionChecks": checks}), make.admission(), NOW, admitted=True
    )
    assert condition_state(wl, "Admitted") == (
        "False",
        "UnsatisfiedAdmissionChecks",
        "The workload has not all checks ready",
    )


def test_pending_topology_request_blocks_admission() -> None:
    admission = make.admission()
    admission["podSetAssignments"][0]["delayedTopologyRequest"] = "Pending"
    wl = lifecycle.reserve_quota(make.workload(), admission, NOW, admitted=True)
    assert condition_state(wl, "Admitted")[1] == "PendingDelayedTopologyRequests"


def test_reserve_quota_removes_resource_requests() -> None:
    wl = lifecycle.with_resource_requests(make.workload(), [{"name": "main", "resources": {"cpu": "1"}}])
    assert "resourceRequests" not in lifecycle.reserve_quota(wl, make.admission(), NOW, admitted=True)["status"]


def test_reserve_quota_resets_eviction_conditions() -> None:
    wl = evictions.evict(
        admitted_workload(), reason="Preempted", message="why", now=make.at(5), preemption="InClusterQueue"
    )
    wl = lifecycle.reserve_quota(
        evictions.release_after_eviction(wl, make.at(5)), make.admission(), make.at(9), admitted=True
    )
    assert condition_state(wl, "Evicted") == ("False", "QuotaReserved", "Previously: why")
    assert condition_state(wl, "Preempted") == ("False", "QuotaReserved", "Previously: why")
    assert condition_state(wl, "Requeued") == ("True", "Preempted", "why")


def test_set_pending_sets_reason_and_not_admitted() -> None:
    wl = lifecycle.set_pending(make.workload(), "WaitingForQuota", "no quota", NOW)
    assert condition_state(wl, "QuotaReserved") == ("False", "WaitingForQuota", "no quota")
    assert condition_state(wl, "Admitted") == ("False", "NoReservation", "The workload has no reservation")
    assert lifecycle.set_pending(wl, "WaitingForQuota", "no quota", make.at(5)) is wl


def test_changed_pending_reason_keeps_transition_time() -> None:
    wl = lifecycle.set_pending(make.workload(), "WaitingForQuota", "no quota", NOW)
    wl = lifecycle.set_pending(wl, "ExceedsMaxQuota", "too large", make.at(5))
    condition = find_condition(wl, "QuotaReserved")
    assert condition is not None
    assert condition["lastTransitionTime"] == make.stamp(0)


def test_sync_admitted_changes_nothing_before_first_evaluation() -> None:
    for wl in (make.workload(), make.workload(conditions=[make.condition("Requeued", False)])):
        assert lifecycle.sync_admitted(wl, NOW) is wl


def test_evict_keeps_admission_and_counts_eviction() -> None:
    wl = evictions.evict(
        admitted_workload(), reason="Preempted", message="why", now=make.at(5), preemption="InClusterQueue"
    )
    assert lifecycle.status(wl) is Status.ADMITTED
    assert condition_state(wl, "Evicted") == ("True", "Preempted", "why")
    assert condition_state(wl, "Preempted") == ("True", "InClusterQueue", "why")
    assert wl["status"]["schedulingStats"]["evictions"] == [{"reason": "Preempted", "underlyingCause": "", "count": 1}]


def test_evictions_are_counted_by_reason() -> None:
    wl = evicted_workload()
    for reason in ("Preempted", "LocalQueueStopped"):
        wl = evictions.evict(wl, reason=reason, message="", now=NOW)
    counts = [(e["reason"], e["count"]) for e in wl["status"]["schedulingStats"]["evictions"]]
    assert counts == [("Preempted", 2), ("LocalQueueStopped", 1)]


def test_evict_resets_checks_and_placement() -> None:
    checks = [
        {"name": "a", "state": "Retry", "retryCount": 1, "requeueAfterSeconds": 9},
        {"name": "b", "state": "Ready"},
    ]
    status = {"admissionChecks": checks, "clusterName": "c", "unhealthyNodes": [{"name": "n"}]}
    wl = evictions.evict(make.workload(status=status), reason="AdmissionCheck", message="", now=NOW)
    first, second = wl["status"]["admissionChecks"]
    assert (first["state"], first["retryCount"], first["requeueAfterSeconds"]) == ("Pending", 2, 9)
    assert first["message"] == "Reset to Pending after eviction. Previously: Retry"
    assert (second["state"], "retryCount" in second) == ("Pending", False)
    assert "clusterName" not in wl["status"]
    assert "unhealthyNodes" not in wl["status"]


def test_evict_closes_preemption_gates() -> None:
    gates = [{"name": "g", "position": "Open", "lastTransitionTime": make.stamp(0)}]
    blocked = make.condition("BlockedOnPreemptionGates", reason="PreemptionGated")
    wl: Obj = make.workload(conditions=[blocked], status={"preemptionGates": gates})
    wl = evictions.evict(wl, reason="Preempted", message="why", now=make.at(3))
    closed = {"name": "g", "position": "Closed", "lastTransitionTime": make.stamp(3)}
    assert wl["status"]["preemptionGates"] == [closed]
    assert condition_state(wl, "BlockedOnPreemptionGates") == ("False", "Preempted", "why")


def test_preempted_workload_is_requeued_at_once() -> None:
    wl = evictions.release_after_eviction(evicted_workload("Preempted"), make.at(10))
    assert lifecycle.status(wl) is Status.PENDING
    assert condition_state(wl, "Requeued") == ("True", "Preempted", "because")
    assert condition_state(wl, "QuotaReserved") == ("False", "PendingEvaluation", "because")
    assert "admission" not in wl["status"]


@pytest.mark.parametrize("reason", ["ClusterQueueStopped", "Deactivated", "AdmissionCheck"])
def test_workload_evicted_for_other_reasons_is_not_requeued(reason: str) -> None:
    wl = evictions.release_after_eviction(evicted_workload(reason), make.at(10))
    assert condition_state(wl, "Requeued") == ("False", reason, "because")


def test_past_execution_time_is_accumulated() -> None:
    wl = evictions.release_after_eviction(evicted_workload(after=10), make.at(10.9))
    assert wl["status"]["accumulatedPastExecutionTimeSeconds"] == 10
    wl = lifecycle.reserve_quota(wl, make.admission(), make.at(20), admitted=True)
    wl = evictions.evict(wl, reason="Preempted", message="", now=make.at(25))
    wl = evictions.release_after_eviction(wl, make.at(25))
    assert wl["status"]["accumulatedPastExecutionTimeSeconds"] == 15


def test_release_requires_eviction_and_reservation() -> None:
    released = evictions.release_after_eviction(evicted_workload(), make.at(10))
    for wl in (make.workload(), admitted_workload(), released):
        assert evictions.release_after_eviction(wl, NOW) is wl


def test_deactivate_evicts_and_removes_requeue_state() -> None:
    wl = evictions.deactivate({**admitted_workload(), "spec": {"active": False}}, make.at(5))
    assert condition_state(wl, "Evicted") == ("True", "Deactivated", "The workload is deactivated")
    waiting = {**wl, "status": {**wl["status"], "requeueState": {"count": 2}}}
    assert "requeueState" not in evictions.deactivate(waiting, make.at(6))["status"]
    assert evictions.deactivate(wl, make.at(6)) is wl


def test_deactivate_reports_cause() -> None:
    wl = evictions.request_deactivation_after_execution_time(admitted_workload(), make.at(5))
    assert condition_state(wl, "DeactivationTarget")[1] == "MaximumExecutionTimeExceeded"
    wl = evictions.deactivate(wl, make.at(5))
    reason, message = condition_state(wl, "Evicted")[1:]
    assert reason == "DeactivatedDueToMaximumExecutionTimeExceeded"
    assert message == "The workload is deactivated due to exceeding the maximum execution time"
    assert find_condition(wl, "DeactivationTarget") is None
    count = wl["status"]["schedulingStats"]["evictions"][0]
    assert count == {"reason": "Deactivated", "underlyingCause": "MaximumExecutionTimeExceeded", "count": 1}


def test_eviction_event_reason_contains_reason_and_cause() -> None:
    assert lifecycle.Eviction("Preempted", "").event_reason == "EvictedDueToPreempted"
    caused = lifecycle.Eviction("Deactivated", "", "RequeuingLimitExceeded")
    assert caused.event_reason == "EvictedDueToDeactivatedDueToRequeuingLimitExceeded"


def test_exceeded_execution_time_resets_accumulated_time() -> None:
    wl = evictions.release_after_eviction(evicted_workload(), make.at(10))
    assert (
        "accumulatedPastExecutionTimeSeconds"
        not in evictions.request_deactivation_after_execution_time(wl, NOW)["status"]
    )


def test_finished_workload_stays_unchanged() -> None:
    wl = lifecycle.finish(admitted_workload(), "Succeeded", "done", NOW)
    assert lifecycle.status(wl) is Status.FINISHED
    assert condition_state(wl, "Finished") == ("True", "Succeeded", "done")
    assert lifecycle.finish(wl, "Failed", "again", make.at(5)) is wl


def test_finish_backoff_removes_requeue_at_and_keeps_count() -> None:
    state = {"count": 3, "requeueAt": make.stamp(60)}
    wl: Obj = make.workload(conditions=[make.condition("Requeued", False)], status={"requeueState": state})
    wl = evictions.finish_backoff(wl, make.at(60))
    assert condition_state(wl, "Requeued") == ("True", "BackoffFinished", "The workload backoff was finished")
    assert wl["status"]["requeueState"] == {"count": 3}
    assert evictions.clear_requeue_at(wl) is wl


def test_resource_requests_are_set_once() -> None:
    requests = [{"name": "main", "resources": {"cpu": "1"}}]
    wl = lifecycle.with_resource_requests(make.workload(), requests)
    assert lifecycle.with_resource_requests(wl, list(requests)) is wl


def test_evict_keeps_pending_check_unchanged() -> None:
    check = {"name": "c", "state": "Pending", "message": "asked"}
    wl = make.workload(status={"admissionChecks": [check]})
    assert evictions.evict(wl, reason="Preempted", message="", now=NOW)["status"]["admissionChecks"] == [check]


def test_long_messages_are_truncated() -> None:
    wl = lifecycle.set_pending(make.workload(), "WaitingForQuota", "x" * 40_000, NOW)
    assert len(condition_state(wl, "QuotaReserved")[2]) == 32 * 1024


@pytest.mark.parametrize(
    ("wl", "admissible"),
    [
        pytest.param(make.workload(), True, id="fresh"),
        pytest.param(make.workload(active=False), False, id="inactive"),
        pytest.param(admitted_workload(), False, id="holds quota"),
        pytest.param(make.workload(conditions=[make.condition("Finished")]), False, id="finished"),
        pytest.param(make.workload(annotations={"kueue.x-k8s.io/admission-gated-by": "me"}), False, id="gated"),
        pytest.param(make.workload(annotations={"kueue.x-k8s.io/admission-gated-by": ""}), True, id="gate open"),
        pytest.param(
            make.workload(conditions=[make.condition("QuotaReserved", False, reason="OnHold")]), False, id="on hold"
        ),
        pytest.param(
            make.workload(conditions=[make.condition("WaitingForReplacementPods")]), False, id="waits for pods"
        ),
    ],
)
def test_workload_view_reports_admissibility(wl: Obj, admissible: bool) -> None:
    assert workload_view(wl).admissible is admissible


#: The state after each event for a Workload that is pending, has quota, is admitted, is finished.
_TABLE: dict[str, tuple[Callable[[Obj], Obj], str]] = {
    "reserve_quota": (lambda wl: lifecycle.reserve_quota(wl, make.admission(), NOW, admitted=True), "AAAF"),
    "set_pending": (lambda wl: lifecycle.set_pending(wl, "WaitingForQuota", "", NOW), "PPPF"),
    "sync_admitted": (lambda wl: lifecycle.sync_admitted(wl, NOW), "PAAF"),
    "evict": (lambda wl: evictions.evict(wl, reason="Preempted", message="", now=NOW), "PQAF"),
    "deactivate": (lambda wl: evictions.deactivate(wl, NOW), "PQAF"),
    "finish": (lambda wl: lifecycle.finish(wl, "Succeeded", "", NOW), "FFFF"),
}


@pytest.mark.parametrize("event", _TABLE)
def test_transition_leads_to_expected_state(event: str) -> None:
    transition, after = _TABLE[event]
    before = (
        make.workload(),
        reserved_workload(),
        admitted_workload(),
        lifecycle.finish(admitted_workload(), "Succeeded", "", NOW),
    )
    names = {Status.PENDING: "P", Status.QUOTA_RESERVED: "Q", Status.ADMITTED: "A", Status.FINISHED: "F"}
    assert "".join(names[lifecycle.status(transition(wl))] for wl in before) == after


def test_transitions_do_not_modify_input() -> None:
    wl = admitted_workload()
    frozen = repr(wl)
    evictions.release_after_eviction(evictions.evict(wl, reason="Preempted", message="", now=NOW), NOW)
    assert repr(wl) == frozen
    assert is_true(wl, "Admitted")
