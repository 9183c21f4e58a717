"""Checkpoints that kubelets save for pods, and the work that restarted containers resume."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, annotation, with_metadata
from batchyard.api.views.pods import resumed_work
from batchyard.base.instant import SECOND
from stage import Stage
from unit.kubelet.simulated.kubelet_make import delete, is_gone, pass_time, started
from unit.nodes.node_make import instance, owner, pod

EVERY = {"batchyard.dev/checkpoint-every": "3s"}


def job(**notes: str) -> Obj:
    annotations = {**EVERY, "batchyard.dev/runtime": "10s"}
    return make.job(annotations=annotations | {f"batchyard.dev/{name}": text for name, text in notes.items()})


def member(name: str = "pod", index: int | None = 0, **spec: Any) -> Obj:
    """A pod of the Job."""
    indexed = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
    return pod(name, metadata={"ownerReferences": owner("Job", "job"), "annotations": indexed}, **spec)


def saved(stage: Stage) -> str | None:
    return annotation(stage.get(scheme.JOB, "job"), "batchyard.dev/work-done")


def resumed(stage: Stage, name: str = "pod") -> float:
    return resumed_work(stage.get(scheme.POD, name)) / SECOND


def stopped(stage: Stage, at: float, name: str = "pod") -> None:
    pass_time(stage, at)
    delete(stage, name=name)
    stage.run(at + 1)
    assert is_gone(stage, name)


def test_next_pod_of_index_resumes_from_checkpoint() -> None:
    stage = started(job(), member())
    stopped(stage, 7)
    assert saved(stage) == '{"0":"6s"}'
    stage.put(member("next"), member("other", 1))
    assert [resumed(stage, name) for name in ("next", "other")] == [6, 0]
    stage.run(12)
    assert stage.get(scheme.POD, "next")["status"]["phase"] == "Succeeded"
    assert (stage.get(scheme.POD, "other")["status"]["phase"], saved(stage)) == ("Running", None)


def test_saved_work_accumulates_over_pods() -> None:
    stage = started(job(), member())
    stopped(stage, 3)
    stage.put(member("next"))
    stopped(stage, 8, "next")
    stage.put(member("last"))
    assert (resumed(stage, "last"), saved(stage)) == (6, '{"0":"6s"}')


def test_nonindexed_pod_resumes_largest_unused_checkpoint() -> None:
    stage = started(job(), member("a", None), member("b", None))
    stopped(stage, 4, "a")
    stopped(stage, 6, "b")
    assert saved(stage) == '{"a":"3s","b":"6s"}'
    stage.put(member("c", None))
    stage.put(member("d", None))
    stage.put(member("e", None))
    assert [resumed(stage, name) for name in "cde"] == [6, 3, 0]
    stopped(stage, 9, "c")
    assert saved(stage) == '{"a":"3s","b":"9s"}'
    stage.put(member("f", None))
    assert resumed(stage, "f") == 9


def test_crashed_machine_saves_work_until_crash() -> None:
    stage = started(instance(), job(), member(restartPolicy="OnFailure"))
    pass_time(stage, 7)
    stage.put(instance(phase="Crashed", since=7))
    assert saved(stage) == '{"0":"6s"}'
    pass_time(stage, 60)
    stage.put(instance(since=60))
    assert resumed(stage) == 6
    stage.run(64)
    assert stage.get(scheme.POD, "pod")["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize("owned", [True, False])
def test_failed_container_resumes_its_own_work(owned: bool) -> None:
    fails = {**EVERY, "batchyard.dev/runtime": "10s", "batchyard.dev/exit-code": "1"}
    failing = with_metadata(member(restartPolicy="OnFailure"), annotations=fails, ownerReferences=owner("Job", "job"))
    stage = started(job(), failing if owned else with_metadata(failing, ownerReferences=None))
    stage.run(10)
    assert (resumed(stage), saved(stage)) == (9, None)
    stage.run(11)
    assert stage.get(scheme.POD, "pod")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_completed_container_restarts_without_saved_work() -> None:
    always = with_metadata(pod(restartPolicy="Always"), annotations=EVERY)
    stage = started(always)
    stage.run(15)
    assert resumed(stage) == 0
    assert stage.get(scheme.POD, "pod")["status"]["containerStatuses"][0]["restartCount"] == 1


def test_zero_checkpoint_interval_saves_nothing() -> None:
    stage = started(job(**{"checkpoint-every": "0s"}), member())
    stopped(stage, 7)
    stage.put(member("next"))
    assert (resumed(stage, "next"), saved(stage)) == (0, None)


def test_invalid_work_done_annotation_is_ignored() -> None:
    stage = started(job(**{"work-done": '{"0": "much"}'}), member())
    assert resumed(stage) == 0
