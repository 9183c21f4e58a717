"""Two-phase admission: quota first, then every check of the queue; what a check that says no does."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.lifecycle import checks_of
from stage import Stage, stated
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


def asking(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"admissionChecksStrategy": {"admissionChecks": list(rules)}}


def open_stage(*rules: dict[str, Any], **spec: Any) -> Stage:
    """A queue that asks for checks; Jobs, the scheduler, and the lifecycle of Workloads."""
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle(), JobReconciler(JobIntegration()))
    stage.put(make.namespace(), make.flavor("spot"), make.flavor("other"), *(check(name) for name in "abc"))
    stage.put(queue("cq", 4, **asking(*rules), **spec), make.local_queue("lq", cluster_queue="cq"))
    return stage


def answer(stage: Stage, name: str, state: str, message: str = "", **fields: Any) -> None:
    """The controller of a check says so now."""
    wl, time = stage.only_workload(), make.stamp((stage.kernel.now() - make.NOW) / 1e6)
    new = {"name": name, "state": state, "message": message, "lastTransitionTime": time, **fields}
    found = [new if old["name"] == name else old for old in checks_of(wl)]
    stage.put(with_path(wl, ("status", "admissionChecks"), found))


def states(stage: Stage) -> dict[str, str]:
    return {each["name"]: each["state"] for each in checks_of(stage.only_workload())}


def suspended(stage: Stage) -> bool:
    return bool(stage.get(scheme.JOB, "job")["spec"]["suspend"])


def test_a_job_runs_once_every_check_is_ready() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    unsatisfied = ("False", "UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
    assert (states(stage), stated(stage.only_workload(), "Admitted")) == ({"a": "Pending", "b": "Pending"}, unsatisfied)
    answer(stage, "a", "Ready")
    assert (lifecycle.status(stage.only_workload()).value, suspended(stage)) == ("quotaReserved", True)
    answer(stage, "b", "Ready")
    assert (lifecycle.status(stage.only_workload()).value, suspended(stage)) == ("admitted", False)
    assert stage.reasons().count("Admitted") == 1


def test_one_that_waits_for_quota_has_the_checks_of_all_flavors() -> None:
    stage = open_stage(*RULES, {"name": "c", "onFlavors": ["other"]}, stopPolicy="Hold")
    stage.put(make.job())
    assert states(stage) == {"a": "Pending", "b": "Pending"}


def test_a_check_is_for_those_who_use_its_flavors() -> None:
    rules = ({"name": "a", "onFlavors": ["other"]}, {"name": "b", "onFlavors": ["spot"]})
    groups = [group(spot={"cpu": 1}, other={"cpu": 9})]
    stage = open_stage(*rules, groups=groups)
    stage.put(make.job())
    assert states(stage) == {"b": "Pending"}
    answer(stage, "b", "Ready")
    assert lifecycle.is_admitted(stage.only_workload())


def test_one_whose_flavors_need_no_check_is_admitted_at_once() -> None:
    stage = open_stage({"name": "a", "onFlavors": ["other"]}, groups=[group(spot={"cpu": 1}, other={"cpu": 9})])
    stage.put(make.job())
    assert (lifecycle.is_admitted(stage.only_workload()), states(stage)) == (True, {})


def test_checks_follow_their_queue() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    stage.put(queue("cq", 4, **asking({"name": "c"}, {"name": "b"})))
    assert states(stage) == {"b": "Pending", "c": "Pending"}
    stage.put(queue("cq", 4))
    assert (states(stage), lifecycle.is_admitted(stage.only_workload())) == ({}, True)
    stage.put(queue("cq", 4, **asking(*RULES)))
    assert (states(stage), lifecycle.is_admitted(stage.only_workload())) == ({"a": "Pending", "b": "Pending"}, True)


def test_a_retry_gives_the_quota_back_and_queues_again() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    answer(stage, "b", "Ready")
    answer(stage, "a", "Retry", "no room")
    message = 'Evicted due to AdmissionCheck in Retry state: "a" (no room)'
    reported = [event.message for event in stage.events if event.reason == "EvictedDueToAdmissionCheck"]
    wl = stage.only_workload()
    assert (reported, stated(wl, "Requeued")[:2]) == ([message], ("True", "BackoffFinished"))
    first, second = checks_of(wl)
    assert (first["state"], first["retryCount"]) == ("Pending", 1)
    assert first["message"] == "Reset to Pending after eviction. Previously: Retry"
    assert (second["state"], "retryCount" in second) == ("Pending", False)
    assert stated(wl, "Evicted") == ("False", "QuotaReserved", f"Previously: {message}")


def test_a_retry_with_a_delay_frees_the_quota_meanwhile() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    answer(stage, "a", "Retry", requeueAfterSeconds=60)
    wl = stage.only_workload()
    assert (lifecycle.status(wl).value, wl["status"]["requeueState"]) == ("pending", {"requeueAt": make.stamp(60)})
    assert stated(wl, "Requeued")[:2] == ("False", "AdmissionCheck")
    assert stated(wl, "QuotaReserved")[:2] == ("False", "PendingEvaluation")
    stage.run(59)
    assert lifecycle.status(stage.only_workload()).value == "pending"
    stage.run(60)
    wl = stage.only_workload()
    assert (lifecycle.status(wl).value, "requeueState" in wl["status"]) == ("quotaReserved", False)


def test_a_retry_never_shortens_a_wait() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    wl = lifecycle.hold_back(stage.only_workload(), make.at(90), counts=True)
    stage.put(wl)
    answer(stage, "a", "Retry", requeueAfterSeconds=60)
    assert stage.only_workload()["status"]["requeueState"] == {"count": 1, "requeueAt": make.stamp(90)}


def test_a_retry_that_comes_late_still_delays() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    answer(stage, "a", "Retry", requeueAfterSeconds=10)
    answer(stage, "b", "Retry", requeueAfterSeconds=60)
    assert stage.only_workload()["status"]["requeueState"] == {"requeueAt": make.stamp(60)}


def test_one_whose_check_failed_too_late_is_tried_when_it_is_taken_back() -> None:
    stage = open_stage({"name": "a"})
    failed = {"name": "a", "state": "Retry", "message": "", "lastTransitionTime": make.stamp(0)}
    stage.put(make.workload(status={"admissionChecks": [failed]}))
    stage.run(5)
    reason = ("PendingEvaluation", "The workload has failed admission checks")
    assert stated(stage.only_workload(), "QuotaReserved")[1:] == reason
    answer(stage, "a", "Ready")
    assert lifecycle.is_admitted(stage.only_workload())


def test_a_rejection_ends_it() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    answer(stage, "a", "Rejected", "never")
    reported = {event.reason: (event.type, event.message) for event in stage.events}
    reason = 'AdmissionCheck in Rejected state: "a" (never)'
    assert reported["AdmissionCheckRejected"] == ("Warning", f"Deactivated due to {reason}")
    message = f"The workload is deactivated due to {reason}"
    assert reported["EvictedDueToDeactivatedDueToAdmissionCheck"] == ("Normal", message)
    wl = stage.only_workload()
    assert stated(wl, "Evicted") == ("True", "DeactivatedDueToAdmissionCheck", message)
    assert (wl["spec"]["active"], "admission" in wl["status"]) == (False, False)
    assert stated(wl, "QuotaReserved")[1] == "Deactivated"
    assert states(stage) == {"a": "Pending", "b": "Pending"}


def test_a_rejection_stops_one_that_runs() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    answer(stage, "a", "Ready")
    assert not suspended(stage)
    answer(stage, "a", "Rejected", "gone")
    assert (suspended(stage), lifecycle.is_admitted(stage.only_workload())) == (True, False)


def test_a_late_retry_of_one_that_was_deactivated_changes_nothing() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    answer(stage, "a", "Rejected")
    answer(stage, "b", "Retry", requeueAfterSeconds=60)
    assert "requeueState" not in stage.only_workload()["status"]


def test_a_job_is_told_what_its_checks_wait_for() -> None:
    stage = open_stage(*RULES)
    stage.put(make.job())
    answer(stage, "b", "Pending", "soon")
    answer(stage, "a", "Pending", "tomorrow")
    news = [(event.regarding.name, event.message) for event in stage.events if event.reason == "UpdatedAdmissionCheck"]
    assert news == [("job", "b: soon"), ("job", "a: tomorrow; b: soon")]


def test_who_was_preempted_before_it_was_admitted_starts_its_checks_anew() -> None:
    stage = open_stage({"name": "a"})
    stage.put(make.job())
    answer(stage, "a", "Ready")
    evicted = lifecycle.evict(stage.only_workload(), reason="Preempted", message="", now=make.NOW)
    stage.put(evicted)
    assert (lifecycle.status(stage.only_workload()).value, states(stage)) == ("quotaReserved", {"a": "Pending"})
    assert suspended(stage)
