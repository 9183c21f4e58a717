"""Bare Workloads take their time and are done; they have no pods."""

import make
from batchyard.api.meta import Obj
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.scheduling.workload import lifecycle
from stage import Stage, stated


def admitted(runtime: str | None = "10s") -> Obj:
    annotations = {"batchyard.dev/runtime": runtime} if runtime else None
    return lifecycle.reserve_quota(make.workload(annotations=annotations), make.admission(), make.NOW, admitted=True)


def played(*objects: Obj) -> Stage:
    stage = Stage(BareWorkloads())
    stage.put(*objects)
    return stage


def test_a_bare_workload_finishes_when_its_time_is_over() -> None:
    stage = played(admitted("10s"))
    stage.run(9)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(10)
    assert stated(stage.workload(), "Finished") == ("True", "Succeeded", "Job finished successfully")
    assert stage.kernel.now() == make.at(10)


def test_a_bare_workload_without_a_time_runs_for_ever() -> None:
    stage = played(admitted(None))
    stage.run(10**6)
    assert lifecycle.is_admitted(stage.workload())
    assert not lifecycle.is_finished(stage.workload())


def test_a_time_that_is_none_counts_as_none() -> None:
    stage = played(admitted("soon"))
    stage.run(10**6)
    assert not lifecycle.is_finished(stage.workload())


def test_an_evicted_bare_workload_is_released_at_once_and_starts_over() -> None:
    stage = played(admitted("10s"))
    stage.kernel.call_at(make.at(6), lambda: None)
    stage.run(6)
    stage.put(lifecycle.evict(stage.workload(), reason="Preempted", message="make room", now=make.at(6)))
    assert lifecycle.status(stage.workload()) is lifecycle.Status.PENDING
    stage.put(lifecycle.reserve_quota(stage.workload(), make.admission(), make.at(6), admitted=True))
    stage.run(15)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(16)
    assert lifecycle.is_finished(stage.workload())


def test_quota_alone_does_not_start_a_bare_workload() -> None:
    wl = make.workload(annotations={"batchyard.dev/runtime": "10s"})
    stage = played(lifecycle.reserve_quota(wl, make.admission(), make.NOW, admitted=False))
    stage.run(100)
    assert not lifecycle.is_finished(stage.workload())
