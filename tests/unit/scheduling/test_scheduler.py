"""Writes of the scheduler, their timing, and recorded events."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, key_of, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import CYCLE_KEY, REPORT_PERIOD, Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from stage import Stage, condition_state
from yard import cohort, group, preemption, queue, workload

SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, {0} more needed"


def open_stage(*objects: Obj, fair_sharing: bool = False) -> Stage:
    """The scheduler and the lifecycle of Workloads; a namespace, and a LocalQueue for every ClusterQueue."""
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy(fair_sharing=fair_sharing)), WorkloadLifecycle())
    stage.put(make.namespace(), make.flavor("spot"))
    stage.put(*objects)
    for obj in objects:
        if obj["kind"] == "ClusterQueue":
            name = obj["metadata"]["name"]
            stage.put(make.local_queue(name, cluster_queue=name))
    return stage


def state(stage: Stage, name: str) -> str:
    """The status of a Workload."""
    return lifecycle.status(stage.workload(name)).value


def events(stage: Stage, reason: str) -> list[tuple[str, str]]:
    """The events with a reason: object name and message."""
    return [(event.regarding.name, event.message) for event in stage.events if event.reason == reason]


def pass_time(stage: Stage, seconds: float) -> None:
    """Run until this many seconds after the start."""
    stage.kernel.call_at(make.at(seconds), stage.runner.validate)
    stage.run(seconds)


def release(stage: Stage, name: str) -> None:
    """Release the quota of an evicted Workload."""
    stage.put(evictions.release_after_eviction(stage.workload(name), stage.kernel.now()))


def finish(stage: Stage, name: str) -> None:
    stage.put(lifecycle.finish(stage.workload(name), "Succeeded", "", stage.kernel.now()))


# Admission.


def test_admission_is_written_like_kueue() -> None:
    stage = open_stage(queue("cq", groups=[group(spot={"cpu": 4, "memory": "8Gi", "pods": 5})]))
    stage.put(workload("a", pod_sets=[make.pod_set(count=2, requests={"cpu": "1500m", "memory": "1Gi"})]))
    assert stage.workload("a")["status"]["admission"] == {
        "clusterQueue": "cq",
        "podSetAssignments": [
            {
                "name": "main",
                "flavors": {"cpu": "spot", "memory": "spot", "pods": "spot"},
                "resourceUsage": {"cpu": "3", "memory": "2Gi", "pods": "2"},
                "count": 2,
            }
        ],
    }
    assert condition_state(stage.workload("a"), "QuotaReserved") == (
        "True",
        "QuotaReserved",
        "Quota reserved in ClusterQueue cq",
    )
    assert condition_state(stage.workload("a"), "Admitted") == ("True", "Admitted", "The workload is admitted")


def test_equal_pod_set_assignments_are_one_object() -> None:
    stage = open_stage(queue("cq", 4))
    for name in "ab":
        stage.put(workload(name))
    a, b = (stage.workload(name)["status"]["admission"]["podSetAssignments"][0] for name in "ab")
    assert a is b


def test_pod_set_without_requests_is_admitted_without_flavors() -> None:
    stage = open_stage(queue("cq", 4))
    idle = {"name": "idle", "count": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    stage.put(workload("a", pod_sets=[make.pod_set(), idle]))
    assert stage.workload("a")["status"]["admission"]["podSetAssignments"] == [
        {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}},
        {"name": "idle", "count": 2},
    ]


def test_admission_is_recorded_in_events() -> None:
    stage = open_stage(queue("cq", 4))
    pass_time(stage, 12)
    stage.put(workload("a"))
    assert events(stage, "QuotaReserved") == [
        ("a", "Quota reserved in ClusterQueue cq, wait time since queued was 12s")
    ]
    assert events(stage, "Admitted") == [("a", "Admitted by ClusterQueue cq, wait time since reservation was 0s")]


def test_quota_reserved_event_lists_considered_flavors() -> None:
    groups = [group(small={"cpu": 1}, tainted={"cpu": 9}, spot={"cpu": 1})]
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    stage = open_stage(
        make.flavor("small"),
        make.flavor("tainted", nodeTaints=[taint]),
        queue("cq", groups=groups, cohort="all"),
        queue("lender", 4, cohort="all"),
    )
    stage.put(workload("a", 3))
    assert events(stage, "QuotaReserved")[0][1].partition("; ")[2] == (
        "Flavors considered: main: small(NoFit;insufficient quota for cpu in flavor small, previously considered"
        " podsets requests (0) + current podset request (3) > maximum capacity (1)), spot(Fit;borrow=1),"
        " tainted(NoFit;untolerated taint {k v NoSchedule <nil>} in flavor tainted)"
    )


def test_quota_reserved_event_separates_pod_sets() -> None:
    groups = [group(small={"cpu": 1}, spot={"cpu": 9})]
    stage = open_stage(make.flavor("small"), queue("cq", groups=groups))
    stage.put(workload("a", pod_sets=[make.pod_set(n, requests={"cpu": c}) for n, c in (("x", 2), ("y", 1), ("z", 3))]))
    reported = events(stage, "QuotaReserved")[0][1]
    assert [part.partition(":")[0] for part in reported.partition("considered: ")[2].split(" | ")] == ["x", "z"]


def test_workload_with_pending_check_is_not_admitted() -> None:
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "check"},
        "spec": {},
    }
    stage = Stage(Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle())
    stage.put(make.namespace(), make.flavor("spot"), make.local_queue("cq", cluster_queue="cq"))
    stage.put({**check, "status": {"conditions": [make.condition("Active")]}})
    stage.put(queue("cq", 4, admissionChecksStrategy={"admissionChecks": [{"name": "check"}]}), workload("a"))
    assert state(stage, "a") == "quotaReserved"
    assert (len(events(stage, "QuotaReserved")), events(stage, "Admitted")) == (1, [])
    pending = {"name": "check", "state": "Pending", "message": "", "lastTransitionTime": make.stamp(0)}
    assert stage.workload("a")["status"]["admissionChecks"] == [pending]
    ready = with_path(stage.workload("a"), ("status", "admissionChecks"), [{**pending, "state": "Ready"}])
    stage.put(ready)
    assert state(stage, "a") == "admitted"


def test_one_head_per_queue_is_admitted_per_cycle() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(*(workload(name, created=n) for n, name in enumerate("abcde")))
    assert [state(stage, name) for name in "abcde"] == ["admitted"] * 4 + ["pending"]


def added(scheduler: Scheduler, *objects: Obj) -> list[Key]:
    """Return the keys that the scheduler requests for these added objects."""
    events = [WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0) for obj in objects]
    return [key for event in events for key in scheduler.keys_for(event, make.NOW)]


def settings() -> list[Obj]:
    """A namespace, a flavor and a LocalQueue for cq."""
    return [make.namespace(), make.flavor("spot"), make.local_queue("cq", cluster_queue="cq")]


@pytest.mark.parametrize("there", [[], [workload("a", active=False)]], ids=["gone", "deactivated"])
def test_changed_head_is_not_admitted(there: list[Obj]) -> None:
    scheduler = Scheduler(SchedulerCache(), SchedulingPolicy())
    added(scheduler, *settings(), queue("cq", 4), workload("a"))
    stage = Stage()
    stage.put(*there)
    outcome = scheduler.reconcile(CYCLE_KEY, stage.client, make.NOW)
    assert (outcome.writes, outcome.events) == ([], [])


# Waiting.


def test_pending_reason_is_written_after_one_second() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("a", 9))
    assert find_condition(stage.workload("a"), "QuotaReserved") is None
    stage.run(1)
    assert condition_state(stage.workload("a"), "QuotaReserved")[:2] == ("False", "ExceedsMaxQuota")
    assert condition_state(stage.workload("a"), "Admitted")[0] == "False"
    assert stage.workload("a")["status"]["resourceRequests"] == [{"name": "main", "resources": {"cpu": "9"}}]


def test_pending_reason_is_recorded_as_warning() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("x", 3), workload("a", 3, created=1))
    stage.run(1)
    (event,) = (e for e in stage.events if e.regarding.name == "a")
    assert (event.type, event.reason, event.message) == ("Warning", "WaitingForQuota", SHORT.format(2))


def test_workload_admitted_within_one_second_gets_no_pending_event() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("x", 3), workload("a", 3, created=1))
    finish(stage, "x")
    stage.run(2)
    assert (state(stage, "a"), events(stage, "WaitingForQuota")) == ("admitted", [])


def test_only_last_reason_of_report_period_is_written() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("a", 9), queue("cq", 5), queue("cq", 6))
    stage.run(2)
    assert [message[-4:-1] for _, message in events(stage, "ExceedsMaxQuota")] == [" (6"]


def test_unchanged_reason_is_not_written_twice() -> None:
    stage = open_stage(queue("cq", 4), queue("far", 4))
    stage.put(workload("a", 9))
    stage.run(1)
    before = stage.workload("a")["metadata"]["resourceVersion"]
    stage.put(queue("cq", 4, preemption=preemption("LowerPriority")))
    stage.run(5)
    assert stage.workload("a")["metadata"]["resourceVersion"] == before
    assert len(events(stage, "ExceedsMaxQuota")) == 1


def test_no_report_is_written_for_deleted_or_inactive_workload() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("a", 9), workload("b", 9, created=1))
    stage.delete(scheme.WORKLOAD, "a")
    stage.put(with_path(stage.workload("b"), ("spec", "active"), value=False))
    stage.run(2)
    assert events(stage, "ExceedsMaxQuota") == []


def test_flush_writes_reports_at_once() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("a", 9))
    stage.runner.flush_delayed(("scheduler",))
    stage.settle()
    assert condition_state(stage.workload("a"), "QuotaReserved")[1] == "ExceedsMaxQuota"
    assert REPORT_PERIOD == 1_000_000


def test_changed_reason_is_recorded() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("x", 1), workload("a", 4, created=1))
    stage.run(1)
    stage.put(queue("cq", 2))
    stage.run(3)
    assert [e.reason for e in stage.events if e.regarding.name == "a"] == ["WaitingForQuota", "ExceedsMaxQuota"]


# Preemption.


def preempting(**fields: Any) -> Stage:
    """A Workload of low priority runs, and one of high priority preempts it."""
    stage = open_stage(queue("cq", 4, cohort="all", preemption=preemption("LowerPriority")))
    stage.put(workload("low", 3, priority=-1))
    stage.put(workload("high", 3, created=1, **fields))
    return stage


MESSAGE = (
    "Preempted to accommodate a workload (UID: uid-high, JobUID: UNKNOWN) due to prioritization in the ClusterQueue;"
    " preemptor path: /all/cq; preemptee path: /all/cq"
)


def test_victim_is_evicted_with_preemption_message() -> None:
    stage = preempting()
    assert condition_state(stage.workload("low"), "Preempted") == ("True", "InClusterQueue", MESSAGE)
    assert events(stage, "Preempted")[0][0] == "low"
    assert events(stage, "Preempted")[0][1].startswith(MESSAGE)


def test_preemptor_is_admitted_after_release_of_victims() -> None:
    stage = preempting()
    assert (state(stage, "high"), state(stage, "low")) == ("pending", "admitted")
    pass_time(stage, 5)
    release(stage, "low")
    assert (state(stage, "high"), state(stage, "low")) == ("admitted", "pending")
    stage.run(7)
    assert condition_state(stage.workload("low"), "QuotaReserved")[1] == "WaitingForQuota"
    finish(stage, "high")
    assert state(stage, "low") == "admitted"


def test_preemptor_reports_pending_preemption() -> None:
    stage = preempting()
    stage.run(2)
    assert condition_state(stage.workload("high"), "QuotaReserved") == (
        "False",
        "WaitingForPreemptedWorkloads",
        SHORT.format(2) + ". Pending the preemption of 1 workload(s)",
    )


def test_evicted_victim_is_not_evicted_twice() -> None:
    stage = preempting()
    stage.put(queue("cq", 5, cohort="all", preemption=preemption("LowerPriority")))
    assert len(events(stage, "Preempted")) == 1


# Cycles without changes.


def test_blocked_strict_fifo_queue_runs_no_cycles_without_changes() -> None:
    stage = open_stage(queue("cq", 4, queueingStrategy="StrictFIFO"))
    stage.put(workload("a", 3), workload("b", 3, created=1), workload("c", 1, created=2))
    steps = stage.kernel.steps
    stage.run(5)
    assert stage.kernel.steps - steps < 40
    assert [state(stage, name) for name in "abc"] == ["admitted", "pending", "pending"]
    finish(stage, "a")
    assert [state(stage, name) for name in "abc"] == ["finished", "admitted", "admitted"]


def test_deleted_queue_leaves_workload_pending() -> None:
    stage = open_stage(queue("cq", 4, queueingStrategy="StrictFIFO"))
    stage.put(workload("a", 9))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    stage.run(5)
    assert state(stage, "a") == "pending"


def test_cycle_is_requested_only_with_heads() -> None:
    scheduler = Scheduler(SchedulerCache(), SchedulingPolicy())
    assert added(scheduler, *settings(), workload("a")) == []
    assert added(scheduler, queue("cq", 4)) == [CYCLE_KEY]


def test_deleted_victim_is_not_evicted() -> None:
    scheduler = Scheduler(SchedulerCache(), SchedulingPolicy())
    held = {**workload("low", 4, priority=-1)}
    admission = make.admission("cq")
    admission["podSetAssignments"][0]["resourceUsage"]["cpu"] = "4"
    running = lifecycle.reserve_quota(held, admission, make.NOW, admitted=True)
    rules = preemption("LowerPriority")
    added(scheduler, *settings(), queue("cq", 4, preemption=rules), running, workload("high"))
    outcome = scheduler.reconcile(CYCLE_KEY, Stage().client, make.NOW)
    assert (outcome.writes, outcome.events, outcome.requeue_at) == ([], [], make.NOW)


def test_workload_is_admitted_after_backoff() -> None:
    stage = open_stage(queue("cq", 4))
    stage.put(workload("a", status={"requeueState": {"requeueAt": make.stamp(30), "count": 1}}))
    stage.run(29)
    assert state(stage, "a") == "pending"
    stage.run(30)
    assert state(stage, "a") == "admitted"


def test_fair_sharing_applies_only_if_enabled() -> None:
    members = [queue("a", 0, cohort="all"), queue("b", 0, cohort="all")]
    held = [workload("x", 2, queue="a"), workload("y", 1, queue="a", created=1), workload("z", 1, queue="b", created=2)]
    for fair_sharing, winner in ((False, "y"), (True, "z")):
        stage = open_stage(cohort("all", 2), *members, fair_sharing=fair_sharing)
        stage.put(held[0])
        stage.put(*held[1:])
        stage.put(cohort("all", 3))
        assert [name for name in "yz" if state(stage, name) == "admitted"] == [winner]
