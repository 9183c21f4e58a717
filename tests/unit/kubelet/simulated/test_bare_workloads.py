"""Bare Workloads, which have no pods, finish after their runtime."""

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage, condition_state


def admitted_workload(runtime: str | None = "10s") -> Obj:
    annotations = {"batchyard.dev/runtime": runtime} if runtime else None
    return lifecycle.reserve_quota(make.workload(annotations=annotations), make.admission(), make.NOW, admitted=True)


def workload_stage(*objects: Obj) -> Stage:
    stage = Stage(BareWorkloads())
    stage.put(*objects)
    return stage


def test_bare_workload_finishes_after_its_runtime() -> None:
    stage = workload_stage(admitted_workload("10s"))
    stage.run(9)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(10)
    assert condition_state(stage.workload(), "Finished") == ("True", "Succeeded", "Job finished successfully")
    assert stage.kernel.now() == make.at(10)


def test_bare_workload_without_runtime_never_finishes() -> None:
    stage = workload_stage(admitted_workload(None))
    stage.run(10**6)
    assert lifecycle.is_admitted(stage.workload())
    assert not lifecycle.is_finished(stage.workload())


def test_invalid_runtime_counts_as_none() -> None:
    stage = workload_stage(admitted_workload("soon"))
    stage.run(10**6)
    assert not lifecycle.is_finished(stage.workload())


def test_evicted_bare_workload_is_requeued_and_restarts_from_zero() -> None:
    stage = workload_stage(admitted_workload("10s"))
    stage.kernel.call_at(make.at(6), lambda: None)
    stage.run(6)
    stage.put(evictions.evict(stage.workload(), reason="Preempted", message="make room", now=make.at(6)))
    assert lifecycle.status(stage.workload()) is lifecycle.Status.PENDING
    stage.put(lifecycle.reserve_quota(stage.workload(), make.admission(), make.at(6), admitted=True))
    stage.run(15)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(16)
    assert lifecycle.is_finished(stage.workload())


def test_bare_workload_without_admission_does_not_start() -> None:
    wl = make.workload(annotations={"batchyard.dev/runtime": "10s"})
    stage = workload_stage(lifecycle.reserve_quota(wl, make.admission(), make.NOW, admitted=False))
    stage.run(100)
    assert not lifecycle.is_finished(stage.workload())
