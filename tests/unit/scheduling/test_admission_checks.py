"""Two-phase admission: quota first, then every check of the queue; the effect of Retry and Rejected."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from stage import Stage, condition_state
from yard import group, queue

RULES = ({"name": "a"}, {"name": "b"})


def check(name: str) -> Obj:
    """An AdmissionCheck that is active."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": make.metadata(name, None),
        "spec": {"controllerName": "example.com/mine"},
        "status": {"conditions": [make.condition("Active")]},
    }


def check_strategy(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"admissionChecksStrategy": {"admissionChecks": list(rules)}}


def open_stage(*rules: dict[str, Any], **spec: Any) -> Stage:
    """A queue with admission checks; the Job, scheduler and Workload controllers."""
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle(), JobReconciler(JobIntegration()))
    stage.put(make.namespace(), make.flavor("spot"), make.flavor("other"), *(check(name) for name in "abc"))
    stage.put(queue("cq", 4, **check_strategy(*rules), **spec), make.local_queue("lq", cluster_queue="cq"))
    return stage


def set_check(stage: Stage, name: str, state: str, message: str = "", **fields: Any) -> None:
    """Set the state of a check, as its controller does."""
    wl, time = stage.only_workload(), make.stamp((stage.kernel.now() - make.NOW) / 1e6)
    new = {"name": name, "state": state, "message": message, "lastTransitionTime": time, **fields}
    result = [new if old["name"] == name else old for old in checks_of(wl)]
    stage.put(with_path(wl, ("status", "admissionChecks"), result))


def states(stage: Stage) -> dict[str, str]:
    return {each["name"]: each["state"] for each in checks_of(stage.only_workload())}


def is_suspended(stage: Stage) -> bool:
    return bool(stage.get(scheme.JOB, "job")["spec"]["suspend"])


def test_job_starts_when_every_check_is_ready() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    unsatisfied = ("False", "UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
    assert (states(stage), condition_state(stage.only_workload(), "Admitted")) == (
        {"a": "Pending", "b": "Pending"},
        unsatisfied,
    )
    set_check(stage, "a", "Ready")
    assert (lifecycle.status(stage.only_workload()).value, is_suspended(stage)) == ("quotaReserved", True)
    set_check(stage, "b", "Ready")
    assert (lifecycle.status(stage.only_workload()).value, is_suspended(stage)) == ("admitted", False)
    assert stage.reasons().count("Admitted") == 1


def test_workload_without_quota_has_checks_of_all_flavors() -> None:
    stage = open_stage(*RULES, {"name": "c", "onFlavors": ["other"]}, stopPolicy="Hold")
    stage.put(make.job())
    assert states(stage) == {"a": "Pending", "b": "Pending"}


def test_check_applies_only_to_workloads_on_its_flavors() -> None:
    rules = ({"name": "a", "onFlavors": ["other"]}, {"name": "b", "onFlavors": ["spot"]})
    groups = [group(spot={"cpu": 1}, other={"cpu": 9})]
    stage = open_stage(*rules, groups=groups)
    stage.put(make.job())
    assert states(stage) == {"b": "Pending"}
    set_check(stage, "b", "Ready")
    assert lifecycle.is_admitted(stage.only_workload())


def test_workload_on_flavor_without_check_is_admitted_at_once() -> None:
    stage = open_stage({"name": "a", "onFlavors": ["other"]}, groups=[group(spot={"cpu": 1}, other={"cpu": 9})])
    stage.put(make.job())
    assert (lifecycle.is_admitted(stage.only_workload()), states(stage)) == (True, {})


def test_checks_follow_spec_of_queue() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    stage.put(queue("cq", 4, **check_strategy({"name": "c"}, {"name": "b"})))
    assert states(stage) == {"b": "Pending", "c": "Pending"}
    stage.put(queue("cq", 4))
    assert (states(stage), lifecycle.is_admitted(stage.only_workload())) == ({}, True)
    stage.put(queue("cq", 4, **check_strategy(*RULES)))
    assert (states(stage), lifecycle.is_admitted(stage.only_workload())) == ({"a": "Pending", "b": "Pending"}, True)


def test_retry_evicts_and_requeues_workload() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "b", "Ready")
    set_check(stage, "a", "Retry", "no room")
    message = 'Evicted due to AdmissionCheck in Retry state: "a" (no room)'
    reported = [event.message for event in stage.events if event.reason == "EvictedDueToAdmissionCheck"]
    wl = stage.only_workload()
    assert (reported, condition_state(wl, "Requeued")[:2]) == ([message], ("True", "BackoffFinished"))
    first, second = checks_of(wl)
    assert (first["state"], first["retryCount"]) == ("Pending", 1)
    assert first["message"] == "Reset to Pending after eviction. Previously: Retry"
    assert (second["state"], "retryCount" in second) == ("Pending", False)
    assert condition_state(wl, "Evicted") == ("False", "QuotaReserved", f"Previously: {message}")


def test_retry_with_delay_keeps_quota_until_retry() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    set_check(stage, "a", "Retry", requeueAfterSeconds=60)
    wl = stage.only_workload()
    assert (lifecycle.status(wl).value, wl["status"]["requeueState"]) == (
        "quotaReserved",
        {"requeueAt": make.stamp(60)},
    )
    stage.run(59)
    assert "EvictedDueToAdmissionCheck" not in stage.reasons()
    stage.run(60)
    wl = stage.only_workload()
    assert stage.reasons().count("EvictedDueToAdmissionCheck") == 1
    assert condition_state(wl, "Requeued")[:2] == ("True", "BackoffFinished")
    assert (lifecycle.status(wl).value, "requeueState" in wl["status"]) == ("quotaReserved", False)


def test_rejection_waits_for_retry_of_other_check() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "a", "Retry", requeueAfterSeconds=60)
    set_check(stage, "b", "Rejected")
    stage.run(59)
    assert lifecycle.is_active(stage.only_workload())
    stage.run(60)
    assert not lifecycle.is_active(stage.only_workload())


def test_workload_preempted_before_retry_is_requeued_at_retry() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    set_check(stage, "a", "Retry", requeueAfterSeconds=60)
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="", now=make.NOW))
    stage.run(59)
    assert lifecycle.status(stage.only_workload()).value == "pending"
    stage.run(60)
    assert lifecycle.status(stage.only_workload()).value == "quotaReserved"


def test_retry_never_shortens_existing_backoff() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    wl = evictions.hold_back(stage.only_workload(), make.at(90), is_counted=True)
    stage.put(wl)
    set_check(stage, "a", "Retry", requeueAfterSeconds=60)
    assert stage.only_workload()["status"]["requeueState"] == {"count": 1, "requeueAt": make.stamp(90)}
    stage.run(89)
    assert "EvictedDueToAdmissionCheck" not in stage.reasons()


def test_later_retry_extends_delay() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "a", "Retry", requeueAfterSeconds=10)
    set_check(stage, "b", "Retry", requeueAfterSeconds=60)
    assert stage.only_workload()["status"]["requeueState"] == {"requeueAt": make.stamp(60)}


def test_workload_with_failed_check_is_admitted_after_check_recovers() -> None:
    stage = open_stage({"name": "a"})
    failed = {"name": "a", "state": "Retry", "message": "", "lastTransitionTime": make.stamp(0)}
    stage.put(make.workload(status={"admissionChecks": [failed]}))
    stage.run(5)
    reason = ("PendingEvaluation", "The workload has failed admission checks")
    assert condition_state(stage.only_workload(), "QuotaReserved")[1:] == reason
    set_check(stage, "a", "Ready")
    assert lifecycle.is_admitted(stage.only_workload())


def test_rejection_deactivates_workload() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "a", "Rejected", "never")
    reported = {event.reason: (event.type, event.message) for event in stage.events}
    reason = 'AdmissionCheck in Rejected state: "a" (never)'
    assert reported["AdmissionCheckRejected"] == ("Warning", f"Deactivated due to {reason}")
    message = f"The workload is deactivated due to {reason}"
    assert reported["EvictedDueToDeactivatedDueToAdmissionCheck"] == ("Normal", message)
    wl = stage.only_workload()
    assert condition_state(wl, "Evicted") == ("True", "DeactivatedDueToAdmissionCheck", message)
    assert (wl["spec"]["active"], "admission" in wl["status"]) == (False, False)
    assert condition_state(wl, "QuotaReserved")[1] == "Deactivated"
    assert states(stage) == {"a": "Pending", "b": "Pending"}


def test_rejection_suspends_running_job() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    set_check(stage, "a", "Ready")
    assert not is_suspended(stage)
    set_check(stage, "a", "Rejected", "gone")
    assert (is_suspended(stage), lifecycle.is_admitted(stage.only_workload())) == (True, False)


def test_retry_is_ignored_after_deactivation() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "a", "Rejected")
    set_check(stage, "b", "Retry", requeueAfterSeconds=60)
    assert "requeueState" not in stage.only_workload()["status"]


def test_check_messages_are_recorded_as_events_of_job() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    set_check(stage, "b", "Pending", "soon")
    set_check(stage, "a", "Pending", "tomorrow")
    news = [(event.regarding.name, event.message) for event in stage.events if event.reason == "UpdatedAdmissionCheck"]
    assert news == [("job", "b: soon"), ("job", "a: tomorrow; b: soon")]


def test_preemption_before_admission_resets_checks() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    set_check(stage, "a", "Ready")
    evicted = evictions.evict(stage.only_workload(), reason="Preempted", message="", now=make.NOW)
    stage.put(evicted)
    assert (lifecycle.status(stage.only_workload()).value, states(stage)) == ("quotaReserved", {"a": "Pending"})
    assert is_suspended(stage)
