"""Checkpoints that kubelets save for pods, and the work that restarted containers resume."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, annotation, with_metadata
from batchyard.api.views.pods import resumed_work
from batchyard.base.instant import SECOND
from stage import Stage
from unit.kubelet.simulated.kubelet_make import delete, is_gone, kubelet_stage, pass_time
from unit.nodes.node_make import instance, owner, pod

EVERY = {"batchyard.dev/checkpoint-every": "3s"}


def job(**notes: str) -> Obj:
    annotations = {**EVERY, "batchyard.dev/runtime": "10s"}
    return make.job(annotations=annotations | {f"batchyard.dev/{name}": text for name, text in notes.items()})


def member(name: str = "pod", index: int | None = 0, **spec: Any) -> Obj:
    """A pod of the Job."""
    indexed = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
    return pod(name, metadata={"ownerReferences": owner("Job", "job"), "annotations": indexed}, **spec)


def saved_work(stage: Stage) -> str | None:
    return annotation(stage.get(scheme.JOB, "job"), "batchyard.dev/work-done")


def resumed_seconds(stage: Stage, name: str = "pod") -> float:
    return resumed_work(stage.get(scheme.POD, name)) / SECOND


def stop_pod(stage: Stage, at: float, name: str = "pod") -> None:
    pass_time(stage, at)
    delete(stage, name=name)
    stage.run(at + 1)
    assert is_gone(stage, name)


def test_next_pod_of_index_resumes_from_checkpoint() -> None:
    stage = kubelet_stage(job(), member())
    stop_pod(stage, 7)
    assert saved_work(stage) == '{"0":"6s"}'
    stage.put(member("next"), member("other", 1))
    assert [resumed_seconds(stage, name) for name in ("next", "other")] == [6, 0]
    stage.run(12)
    assert stage.get(scheme.POD, "next")["status"]["phase"] == "Succeeded"
    assert (stage.get(scheme.POD, "other")["status"]["phase"], saved_work(stage)) == ("Running", None)


def test_saved_work_accumulates_over_pods() -> None:
    stage = kubelet_stage(job(), member())
    stop_pod(stage, 3)
    stage.put(member("next"))
    stop_pod(stage, 8, "next")
    stage.put(member("last"))
    assert (resumed_seconds(stage, "last"), saved_work(stage)) == (6, '{"0":"6s"}')


def test_nonindexed_pod_resumes_largest_unused_checkpoint() -> None:
    stage = kubelet_stage(job(), member("a", None), member("b", None))
    stop_pod(stage, 4, "a")
    stop_pod(stage, 6, "b")
    assert saved_work(stage) == '{"a":"3s","b":"6s"}'
    stage.put(member("c", None))
    stage.put(member("d", None))
    stage.put(member("e", None))
    assert [resumed_seconds(stage, name) for name in "cde"] == [6, 3, 0]
    stop_pod(stage, 9, "c")
    assert saved_work(stage) == '{"a":"3s","b":"9s"}'
    stage.put(member("f", None))
    assert resumed_seconds(stage, "f") == 9


def test_crashed_machine_saves_work_until_crash() -> None:
    stage = kubelet_stage(instance(), job(), member(restartPolicy="OnFailure"))
    pass_time(stage, 7)
    stage.put(instance(phase="Crashed", since=7))
    assert saved_work(stage) == '{"0":"6s"}'
    pass_time(stage, 60)
    stage.put(instance(since=60))
    assert resumed_seconds(stage) == 6
    stage.run(64)
    assert stage.get(scheme.POD, "pod")["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize("owned", [True, False])
def test_failed_container_resumes_its_own_work(owned: bool) -> None:
    fails = {**EVERY, "batchyard.dev/runtime": "10s", "batchyard.dev/exit-code": "1"}
    failing = with_metadata(member(restartPolicy="OnFailure"), annotations=fails, ownerReferences=owner("Job", "job"))
    stage = kubelet_stage(job(), failing if owned else with_metadata(failing, ownerReferences=None))
    stage.run(10)
    assert (resumed_seconds(stage), saved_work(stage)) == (9, None)
    stage.run(11)
    assert stage.get(scheme.POD, "pod")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_completed_container_restarts_without_saved_work() -> None:
    always = with_metadata(pod(restartPolicy="Always"), annotations=EVERY)
    stage = kubelet_stage(always)
    stage.run(15)
    assert resumed_seconds(stage) == 0
    assert stage.get(scheme.POD, "pod")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_zero_checkpoint_interval_saves_nothing() -> None:
    stage = kubelet_stage(job(**{"checkpoint-every": "0s"}), member())
    stop_pod(stage, 7)
    stage.put(member("next"))
    assert (resumed_seconds(stage, "next"), saved_work(stage)) == (0, None)


def test_invalid_work_done_annotation_is_ignored() -> None:
    stage = kubelet_stage(job(**{"work-done": '{"0": "much"}'}), member())
    assert resumed_seconds(stage) == 0
