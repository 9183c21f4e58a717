"""Workloads follow the value of their WorkloadPriorityClass."""

import make
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.adjustments import PriorityClassValues
from stage import Stage

REF = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}


def test_a_changed_value_reaches_the_workloads_of_the_class() -> None:
    stage = Stage(PriorityClassValues())
    other = {**REF, "name": "other"}
    stage.put(make.workload_priority_class("high", 5))
    stage.put(
        make.workload("a", priorityClassRef=REF, priority=5), make.workload("b", priorityClassRef=other, priority=5)
    )
    stage.put(make.workload_priority_class("high", 9))
    assert [w["spec"]["priority"] for w in stage.workloads()] == [9, 5]


def test_a_class_of_pods_of_the_same_name_is_another() -> None:
    stage = Stage(PriorityClassValues())
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    stage.put(make.workload(priorityClassRef=ref, priority=5), make.workload_priority_class("high", 9))
    assert stage.workload()["spec"]["priority"] == 5


def test_a_class_made_again_counts_and_finished_workloads_do_not() -> None:
    stage = Stage(PriorityClassValues())
    finished = lifecycle.finish(make.workload("done", priorityClassRef=REF, priority=5), "Succeeded", "", make.NOW)
    stage.put(finished, make.workload("waits", priorityClassRef=REF, priority=5))
    stage.put(make.workload_priority_class("high", 9))
    assert {w["metadata"]["name"]: w["spec"]["priority"] for w in stage.workloads()} == {"done": 5, "waits": 9}


def test_one_that_changed_its_class_follows_the_new_one() -> None:
    stage = Stage(PriorityClassValues())
    stage.put(make.workload_priority_class("high", 5), make.workload(priorityClassRef=REF, priority=5))
    stage.put(make.workload(priorityClassRef={**REF, "name": "low"}, priority=1))
    stage.put(make.workload_priority_class("high", 9))
    assert stage.workload()["spec"]["priority"] == 1
