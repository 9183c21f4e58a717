"""The priority of Workloads follows the value of their WorkloadPriorityClass."""

import make
from batchyard.api.meta import key_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.adjustments import PriorityClassValues
from stage import Stage

REF = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}


def test_changed_value_updates_workloads_of_class() -> None:
    stage = Stage(PriorityClassValues())
    other = {**REF, "name": "other"}
    stage.put(make.workload_priority_class("high", 5))
    stage.put(
        make.workload("a", priorityClassRef=REF, priority=5), make.workload("b", priorityClassRef=other, priority=5)
    )
    stage.put(make.workload_priority_class("high", 9))
    assert [w["spec"]["priority"] for w in stage.workloads()] == [9, 5]


def test_pod_priority_class_with_same_name_is_ignored() -> None:
    stage = Stage(PriorityClassValues())
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    stage.put(make.workload(priorityClassRef=ref, priority=5), make.workload_priority_class("high", 9))
    assert stage.workload()["spec"]["priority"] == 5


def test_created_class_updates_only_unfinished_workloads() -> None:
    stage = Stage(PriorityClassValues())
    finished = lifecycle.finish(make.workload("done", priorityClassRef=REF, priority=5), "Succeeded", "", make.NOW)
    stage.put(finished, make.workload("waits", priorityClassRef=REF, priority=5))
    stage.put(make.workload_priority_class("high", 9))
    assert {w["metadata"]["name"]: w["spec"]["priority"] for w in stage.workloads()} == {"done": 5, "waits": 9}


def test_workload_follows_its_new_class() -> None:
    stage = Stage(PriorityClassValues())
    stage.put(make.workload_priority_class("high", 5), make.workload(priorityClassRef=REF, priority=5))
    stage.put(make.workload(priorityClassRef={**REF, "name": "low"}, priority=1))
    stage.put(make.workload_priority_class("high", 9))
    assert stage.workload()["spec"]["priority"] == 1


def test_class_that_is_gone_changes_no_workload() -> None:
    stage, controller = Stage(), PriorityClassValues()
    stage.put(make.workload(priorityClassRef=REF, priority=5))
    changed = make.workload_priority_class("high", 9)
    for obj in (stage.workload(), changed):
        keys = controller.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW)
    assert list(keys) == [key_of(changed)]
    assert controller.reconcile(key_of(changed), stage.client, make.NOW).writes == []
