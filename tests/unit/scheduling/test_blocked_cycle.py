"""blockAdmission: the entry that a cycle had to block is admitted next, then the entries behind it in that cycle."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.interfaces.client import Update
from batchyard.scheduling.blocked_cycle import PodsReadyGate
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, set_pods_ready
from stage import Stage, condition_state
from yard import preemption, queue, workload

BLOCKED = ("False", "WaitingForPodsReady", "waiting for all admitted workloads to be in PodsReady condition")
ALL = PodsReadyPolicy(without_job=True)


def scheduler() -> Scheduler:
    return Scheduler(SchedulerCache(), SchedulingPolicy(), gate=PodsReadyGate(ALL))


def blocked_stage(*queues: str, policy: PodsReadyPolicy = ALL, **spec: Any) -> Stage:
    """ClusterQueues of four cpus each; all Workloads have pods to wait for."""
    stage = Stage(scheduler(), WorkloadLifecycle(policy))
    stage.put(make.namespace(), make.flavor("spot"))
    for name in queues:
        stage.put(queue(name, 4, **spec), make.local_queue(name, cluster_queue=name))
    return stage


def submit_to_one_cycle(stage: Stage, *workloads: Obj) -> None:
    """Submit Workloads to one cycle: their LocalQueues stay stopped until all Workloads exist."""
    names = [each["spec"]["queueName"] for each in workloads]
    stage.put(*(make.local_queue(name, cluster_queue=name, stopPolicy="Hold") for name in names), *workloads)
    started = [Update(make.local_queue(name, cluster_queue=name)) for name in names]
    stage.client.submit(started, lambda _: None)
    stage.settle()


def admitted_names(stage: Stage) -> list[str]:
    """The Workloads that hold quota."""
    return sorted(each["metadata"]["name"] for each in stage.workloads() if lifecycle.is_admitted(each))


def be_ready(stage: Stage, name: str) -> None:
    stage.put(set_pods_ready(stage.workload(name), True, stage.kernel.now()))


def stage_with_blocked_entry(*, restarts: bool = False) -> Stage:
    """`a` is not ready, `low` is blocked by `a`, and `high` arrived later in the same ClusterQueue."""
    stage = blocked_stage("cq", "other")
    stage.put(workload("a", queue="other"))
    stage.put(workload("low", 2))
    stage.put(workload("high", 4, priority=9, created=1))
    assert (admitted_names(stage), condition_state(stage.workload("low"), "QuotaReserved")) == (["a"], BLOCKED)
    if restarts:
        stage.replace_controllers(scheduler(), WorkloadLifecycle(ALL))
        assert (admitted_names(stage), condition_state(stage.workload("low"), "QuotaReserved")) == (["a"], BLOCKED)
    return stage


# The blocked entry.


def test_blocked_entry_is_admitted_before_timed_out_workload() -> None:
    """Upstream's spec "Should unblock admission [...] once the admitted workload exceeds timeout"."""
    policy = PodsReadyPolicy(timeout=10 * MILLISECOND, backoff_base=SECOND, without_job=True)
    stage = blocked_stage("prod", "dev", policy=policy)
    stage.put(workload("prod", 2, queue="prod"))
    stage.run(1)
    stage.put(workload("dev", 2, queue="dev", created=1))
    assert condition_state(stage.workload("dev"), "QuotaReserved") == BLOCKED
    stage.kernel.call_at(make.at(3), lambda: None)
    stage.run(3)
    given_back = evictions.release_after_eviction(stage.workload("prod"), stage.kernel.now())
    stage.put(evictions.finish_backoff(given_back, stage.kernel.now()))
    assert admitted_names(stage) == ["dev"]
    assert condition_state(stage.workload("prod"), "QuotaReserved") == BLOCKED


@pytest.mark.parametrize("restarts", [False, True])
def test_blocked_entry_is_admitted_before_later_workload(restarts: bool) -> None:
    stage = stage_with_blocked_entry(restarts=restarts)
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "low"]
    be_ready(stage, "low")
    stage.run(5)
    assert condition_state(stage.workload("high"), "QuotaReserved")[1] == "WaitingForQuota"


def test_blocked_entry_is_admitted_after_its_queue_stopped() -> None:
    stage = stage_with_blocked_entry()
    stage.put(queue("cq", 4, stopPolicy="Hold"))
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "low"]


def test_blocked_entry_of_inadmissible_workload_is_skipped() -> None:
    stage = stage_with_blocked_entry()
    stage.put(with_path(stage.workload("low"), ("spec", "active"), False))
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "high"]

    stage = stage_with_blocked_entry()
    stage.put(lifecycle.finish(stage.workload("low"), "Failed", "", make.NOW))
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "high"]

    stage = stage_with_blocked_entry()
    stage.delete(scheme.WORKLOAD, "low")
    assert admitted_names(stage) == ["a"]
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "high"]


def test_blocked_entry_of_changed_workload_is_discarded() -> None:
    stage = stage_with_blocked_entry()
    stage.put(with_path(stage.workload("low"), ("spec", "podSets"), [make.pod_set(requests={"cpu": "3"})]))
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "high"]


def test_blocked_entry_of_deleted_queue_is_skipped() -> None:
    stage = stage_with_blocked_entry()
    stage.put(workload("b", queue="other", created=2))
    stage.delete(scheme.CLUSTER_QUEUE, "cq", "")
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "b"]


# The entries behind the blocked entry.


def three_in_one_cycle() -> Stage:
    """A cycle admitted `a`; `a` blocks `b`, and `c` is behind `b`."""
    stage = blocked_stage("qa", "qb", "qc")
    names = ("a", "b", "c")
    submit_to_one_cycle(stage, *(workload(name, queue=f"q{name}", created=at) for at, name in enumerate(names)))
    assert admitted_names(stage) == ["a"]
    return stage


def test_entries_behind_blocked_entry_keep_cycle_order() -> None:
    stage = three_in_one_cycle()
    stage.put(workload("first", queue="qa", priority=9))
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "b"]
    assert condition_state(stage.workload("c"), "QuotaReserved") == BLOCKED
    be_ready(stage, "b")
    assert admitted_names(stage) == ["a", "b", "c"]
    assert condition_state(stage.workload("first"), "QuotaReserved") == BLOCKED
    be_ready(stage, "c")
    assert admitted_names(stage) == ["a", "b", "c", "first"]


def test_entry_behind_deleted_entry_is_next() -> None:
    stage = three_in_one_cycle()
    stage.put(workload("first", queue="qa", priority=9))
    stage.delete(scheme.WORKLOAD, "b")
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "c"]


def preemptor_behind() -> Stage:
    """`a` blocks `b`. Behind `b` in the same cycle is `c`, which preempts `v`."""
    stage = blocked_stage("qa", "qb", "qc", preemption=preemption(within="LowerPriority"))
    stage.put(workload("v", 3, queue="qc"))
    be_ready(stage, "v")
    stage.put(workload("a", queue="qa"))
    submit_to_one_cycle(stage, workload("b", queue="qb", priority=9), workload("c", 3, queue="qc", priority=5))
    assert (admitted_names(stage), lifecycle.is_evicted(stage.workload("v"))) == (["a", "v"], False)
    return stage


def test_preemption_behind_blocked_entry_runs_after_it() -> None:
    stage = preemptor_behind()
    stage.put(workload("d", 3, queue="qc", priority=7))
    be_ready(stage, "a")
    assert condition_state(stage.workload("v"), "Evicted")[:2] == ("True", "Preempted")
    (event,) = [event for event in stage.events if event.reason == "PreemptedWorkload"]
    assert (event.regarding.name, "b" in admitted_names(stage)) == ("c", True)


def test_blocked_preemption_is_skipped_without_victim_or_preemptor() -> None:
    stage = preemptor_behind()
    stage.put(lifecycle.finish(stage.workload("v"), "Succeeded", "", make.NOW))
    be_ready(stage, "a")
    be_ready(stage, "b")
    assert admitted_names(stage) == ["a", "b", "c", "v"]
    assert not lifecycle.is_evicted(stage.workload("v"))

    stage = preemptor_behind()
    stage.delete(scheme.WORKLOAD, "c")
    be_ready(stage, "a")
    assert (admitted_names(stage), lifecycle.is_evicted(stage.workload("v"))) == (["a", "b", "v"], False)


def test_workload_reports_missing_quota_while_its_cycle_is_blocked() -> None:
    stage = blocked_stage("qa", "qb", "qc")
    stage.put(workload("a", queue="qa"))
    submit_to_one_cycle(stage, workload("b", queue="qb"), workload("large", 5, queue="qc"))
    stage.run(5)
    assert condition_state(stage.workload("b"), "QuotaReserved") == BLOCKED
    assert condition_state(stage.workload("large"), "QuotaReserved")[1] == "ExceedsMaxQuota"


def test_restart_skips_blocked_workload_whose_local_queue_stopped_meanwhile() -> None:
    stage = stage_with_blocked_entry()
    stage.replace_controllers()
    stage.put(make.local_queue("cq", cluster_queue="cq", stopPolicy="Hold"), workload("b", queue="other", created=2))
    stage.replace_controllers(scheduler())
    assert condition_state(stage.workload("b"), "QuotaReserved") == BLOCKED
    be_ready(stage, "a")
    assert admitted_names(stage) == ["a", "b"]
